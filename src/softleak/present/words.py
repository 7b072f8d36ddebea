"""Write the verdict: what leaked, what did not succeed, what was not attacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from softleak.audit.leaks import Leak
from softleak.audit.options import TokenNames
from softleak.audit.report import Audit, AuditReport, Counts, Method, SamplesFinding
from softleak.audit.sweeps import Treatment, Utility
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status, tags_in_words
from softleak.core.vocabulary import State, written
from softleak.inversion.results import Certainty, Text
from softleak.inversion.texts.embeddings import FROM_EMBEDDINGS
from softleak.inversion.texts.span import FROM_SPAN
from softleak.labels.certify import describe_family
from softleak.present.bounds import unaffordable
from softleak.present.fit import in_a_word

# Limits that keep sentences short.
MOST_ENTRIES = 3  # entries of a label that are listed
SMALLEST_ENTRY = 5e-4  # entries below this are not worth a place
MOST_CLASSES = 20  # classes that are listed
MOST_SAMPLES = 8  # samples of an update whose labels are listed
MOST_WORDS = 60  # words of a text without their places that are listed
FAILED = "this attack did not succeed"
VOID = "nothing is known of it, as the update contradicts what was stated"


def class_name(index: int, names: Sequence[str]) -> str:
    """Return the name of a class, or its number."""
    return names[index] if index < len(names) else f"class {index}"


def in_a_line(y: Tensor, names: Sequence[str]) -> str:
    """Return a label short enough for a table: its two leading entries at most."""
    telling = int((y - y.min() > SMALLEST_ENTRY).sum())
    return describe(y, names, telling if telling <= 2 else 1)


def describe(y: Tensor, names: Sequence[str], most: int = MOST_ENTRIES) -> str:
    """Return the largest entries of a label by name, and how many others share the rest."""
    values, indices = y.sort(descending=True)
    level = float(values[-1])
    top = [(float(v), int(i)) for v, i in zip(values, indices, strict=True)][:most]
    parts = [f"{class_name(i, names)} {v:.4f}" for v, i in top if v - level > SMALLEST_ENTRY]
    rest = len(y) - len(parts)
    if not parts:
        return f"all {len(y)} classes alike"
    others = rest > 0 and float(values[len(parts)]) > SMALLEST_ENTRY
    return ", ".join(parts) + (f", {rest} others" if others else "")


def listed(parts: Sequence[str]) -> str:
    """Return the parts as a list in a sentence: ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


ONE_WORD = "1 word of its text, not its place"


def leaked_of_text(text: Text, several: bool = False) -> str:
    """Return what leaked of a text, or of several texts together, for a headline."""
    if text.certain:
        return "its text, every word in its place"
    used = len(text.places) - text.count(Certainty.EMPTY)
    sure, likely = text.count(Certainty.CERTAIN), text.count(Certainty.LIKELY)
    known, doubt = (sure, "") if sure else (likely, " in all likelihood")
    if known and _length_known(text):
        return f"{known} of {used} words of its text in their place{doubt}"
    if known:
        words = "1 word of its text in its" if known == 1 else f"{known} words of its text in their"
        return f"{words} place{doubt} (how long the text is is not known)"
    count = len(text.words)
    if several:
        words = "1 word" if count == 1 else f"{count} words"
        return f"{words} of its texts (but not which text has which word)"
    return f"{count} words of its text, not their order" if count != 1 else ONE_WORD


def _length_known(text: Text) -> bool:
    """Return whether a text has no words but those at its places.

    A span has no more dimensions than stand out of rounding, so it may hide words, unless the text
    that was read explains the share.
    """
    return text.explained or text.method != FROM_SPAN


def known_words(text: Text) -> str:
    """Return how many words of a text are known, for a cell of a table."""
    used = len(text.places) - text.count(Certainty.EMPTY)
    known = text.count(Certainty.CERTAIN, Certainty.LIKELY)
    if not known:
        return f"{len(text.words)} words, no order"
    return f"{known} of {used if _length_known(text) else '?'} words"


def input_in_brief(report: AuditReport) -> str:
    """Return how good an input that leaked is, for a cell of a table."""
    if report.input.text is not None:
        return known_words(report.input.text)
    told = report.input.psnr_predicted if report.input.leaked else None
    return "recognisable" if told is None else f"{told:.0f} dB"


def classes_in_brief(report: AuditReport) -> str:
    """Return how many classes are proved, for a cell of a table; a label that is known is one.

    Of several labels it is those that a sample has.
    """
    recovery, own = report.label.recovery, 1
    if recovery.tags and recovery.label is not None:
        own = int((recovery.label > 0.5).sum())
    return f"{max(len(report.composition.raised), own)} proved"


def leaked_of_texts(texts: Iterable[Text], count: int) -> str:
    """Return what leaked of several texts, for a headline."""
    whose = "its text" if count == 1 else "their text"
    return whose if all(text.certain for text in texts) else f"words of {whose}"


def leaked_of_samples(found: SamplesFinding, leaks: Sequence[Leak]) -> list[str]:
    """Return what leaked of the samples of an update; of the same number it is said together."""
    said: dict[int, list[str]] = {}
    for leak in leaks:
        count = 0 if leak.of_samples is None else leak.of_samples(found)
        noun = leak.short if count == 1 else f"{leak.short}s"
        said.setdefault(count, []).append(leak.each.format(noun))
    return [f"{listed(words)} of {_part(count, found.size)}" for count, words in said.items()]


def _part(count: int, size: int) -> str:
    if count != size:
        return f"{count} of {size} samples"
    return "both samples" if size == 2 else f"all {size} samples"


def samples_words(found: SamplesFinding) -> str:
    """Return what is known of the labels of an update of several samples."""
    if found.found is None:
        return found.message
    if not found.proved:
        return f"no label of a single sample is proved: {found.message}; {FAILED}"
    return f"proved of {_part(len(found.proved), found.size)}, without the truth: {found.message}"


def features_words(found: SamplesFinding) -> str:
    """Return what is known of the features of an update of several samples."""
    if found.found is None:
        return "not attacked: the update mixes several samples or steps"
    if not found.features:
        return f"not proved; {FAILED}"
    errors = [one.feature_error for one in found.proved]
    part = _part(found.features, found.size)
    return f"proved of {part}, to a relative error of {written(max(errors))} or less"


def inputs_words(found: SamplesFinding) -> str:
    """Return what is known of the inputs, if they are given away."""
    part = f"the inputs of {_part(found.inputs, found.size)}"
    if found.searched is None:
        return f"{part}, computed from the update and proved"
    predicted = found.searched.psnr_predicted
    quality = "" if predicted is None else f"predicted {predicted:.0f} dB, "
    return f"{part}, {quality}by {found.searched.method.value}: {found.searched.message}"


WITHOUT_TRUTH = ", proved without the truth"


def reread(report: AuditReport) -> Tensor | None:
    """Return the label that the numbers mean if they are not what was stated, but what fits."""
    readings = report.label.recovery.readings
    return readings[0].label if readings and not report.fit.holds else None


def worded(one: Recovery, names: Sequence[str], say: Callable[[Tensor, Sequence[str]], str]) -> str:
    """Return the label of one sample in the words of ``say``; several labels are listed."""
    if one.label is None:
        return ""
    if one.tags:
        return tags_in_words(one.label, names, one.presence)
    return say(one.label, names) if one.loss.balanced else one.in_words


def sample_words(one: Recovery, names: Sequence[str], remark: str = WITHOUT_TRUTH) -> str:
    """Return what is known of one sample: its label and its certificate."""
    label = "no label" if one.label is None else worded(one, names, describe)
    if one.status is Status.UNIQUE:
        return f"{label}; off by at most {written(one.error)} in L1{remark}"
    return f"perhaps {label}; {one.message}"


def label_words(report: AuditReport, names: Sequence[str], remark: str = WITHOUT_TRUTH) -> str:
    """Return what was proved of the label."""
    recovery, proved = report.label.recovery, report.label.proved
    if report.refuted:
        return f"{VOID}. {contradiction(report)}"
    if report.samples.attacked:
        return samples_words(report.samples)
    if recovery.status is Status.UNIQUE or report.label.listed:
        return sample_words(recovery, names, remark)
    if proved == "CLASS" and report.label.class_index is not None:
        name = class_name(report.label.class_index, names)
        return f"the class is {name}; its weight is not determined: {recovery.message}"
    if proved == "PROBABLE" and recovery.label is not None:
        name = class_name(int(recovery.label.argmax()), names)
        return (
            f"the class is {name} with a probability of {recovery.confidence or 0:.1%}: the update "
            f"carries noise of standard deviation {written(recovery.noise)}; the likeliest label "
            f"is {describe(recovery.label, names)}"
        )
    if proved == "AMBIGUOUS":
        read = reread(report)
        which = "one of a set of labels" if read is None else (
            f"{describe(read, names)} in another reading"
        )  # fmt: skip
        return f"{which}: {recovery.message}"
    if not report.states[Leak.LABEL].attacked:
        return f"not attacked: {report.why}"
    return f"no label: {report.why}; {FAILED}"


def in_brief(
    report: AuditReport, names: Sequence[str], say: Callable[[Tensor, Sequence[str]], str]
) -> str:
    """Return the label in the words of ``say`` if it was proved, else the class or a reason."""
    recovery = report.label.recovery
    if recovery.status is Status.UNIQUE or report.label.listed:
        return worded(recovery, names, say)
    if (read := reread(report)) is not None:
        return f"{say(read, names)}, if {in_a_word(report.fit)}"
    if report.label.class_index is not None:
        return class_name(report.label.class_index, names)
    if report.samples.proved:
        labels = [worded(one, names, say) for one in report.samples.proved]
        return " | ".join(labels[:MOST_SAMPLES])
    if report.composition.raised:
        return _classes(report.composition.raised, names)
    if not report.fit.holds:
        return f"contradicted: {in_a_word(report.fit)}"
    return report.notes[0] if report.notes else recovery.status.value


def feature_words(report: AuditReport) -> str:
    """Return what was proved of the input of the last layer."""
    if report.samples.attacked:
        return features_words(report.samples)
    if report.feature.proved:
        error = written(report.feature.error)
        rest = UP_TO_LENGTH if report.feature.up_to_length else ""
        return f"all {report.feature.entries} entries, to a relative error of {error}{rest}"
    if report.states[Leak.FEATURE] is State.NOT_ATTACKED:
        return "not attacked: the update mixes several samples or steps"
    return f"not proved; {_failed(report, Leak.FEATURE)}"


def input_words(report: AuditReport) -> str:
    """Return what was recovered of the input."""
    if report.samples.inputs:
        return inputs_words(report.samples)
    found, told = report.input, None if report.score is None else report.score.psnr
    if found.method == Method.NONE:
        return f"not attacked: {found.message}"
    if found.text is not None:
        return text_words(report)
    if found.pixels is None:
        return f"not recovered: {found.message}; {_failed(report, Leak.INPUT)}"
    quality = "" if found.psnr_predicted is None else f"predicted {found.psnr_predicted:.0f} dB, "
    quality += "" if told is None else f"{told:.0f} dB against the truth, "
    said = f"{quality}by {found.method.value}: {found.message}"
    if not report.shows_input:
        return f"not determined, {said}; {_failed(report, Leak.INPUT)}"
    if report.score is None and found.doubtful:
        return f"perhaps recognisable, as a prediction may be 2 dB too low; {said}"
    return said if found.leaked and found.method.exact else f"recognisable, {said}"


def _failed(report: AuditReport, leak: Leak) -> str:
    """Return that an attack did not succeed, and that this says nothing if it could not count."""
    return VOID if report.states[leak] is State.CONTRADICTED else FAILED


def text_words(report: AuditReport) -> str:
    """Return the text as it was read, and how certain its words are."""
    text, names = report.input.text, report.tokens
    if text is None:
        return ""
    places = [place for place in text.places if place.certainty is not Certainty.EMPTY]
    if not places:
        occur = _some_words(text.words, names)
        return f"these words occur: {occur}; {text.message}" if occur else text.message
    sure = text.count(Certainty.CERTAIN)
    right = None if report.score is None else report.score.tokens_right
    told = "" if right is None else f"; {right:.1%} of the true words are in their place"
    said = names.sentence([place.token for place in places])
    known = text.method == FROM_EMBEDDINGS  # else candidates were only not excluded
    open_ = {token for place in places for token in place.candidates if known}
    seem = f"; these words seem to occur: {_some_words(sorted(open_), names)}" if open_ else ""
    of = len(places) if _length_known(text) else "an unknown number of"
    return f"“{said}”: {sure} of {of} words certain{told}; {text.message}{seem}"


def _some_words(tokens: Sequence[int], names: TokenNames) -> str:
    return _some([names.name(token) for token in tokens[:MOST_WORDS]], len(tokens))


def _some(first: Sequence[str], count: int) -> str:
    """Return the first of some things, and how many more there are."""
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return ", ".join(first) + more


def composition_words(
    report: AuditReport, names: Sequence[str], remark: str = WITHOUT_TRUTH
) -> str:
    """Return which classes are among the labels, and how often each."""
    found = report.composition
    if not found.attacked:
        known = report.states[Leak.COMPOSITION] is State.LEAKED
        return "that of the label above" if known else found.message
    if not found.raised:
        return f"no class: {found.message}; {_failed(report, Leak.COMPOSITION)}"
    proved = f"{_classes(found.present, names)}{remark}" if found.present else "none proved"
    more = [j for j in found.raised if j not in found.present]
    open_ = f"; unless labels are smoothed also {_classes(more, names)}" if more else ""
    said = f"{proved}{open_}: {found.message}"
    if found.counts is None:
        return said
    return f"{said}; counts: {_counted(found.counts, found.raised, names)}"


def _classes(present: Sequence[int], names: Sequence[str]) -> str:
    return _some([class_name(i, names) for i in present[:MOST_CLASSES]], len(present))


def _counted(counts: Counts, present: Sequence[int], names: Sequence[str]) -> str:
    """Return the estimate of every class that occurs, with its bounds."""
    some = [i for i, n in enumerate(counts.estimated) if n or i in present][:MOST_CLASSES]
    return ", ".join(
        f"{class_name(i, names)} {counts.estimated[i]}"
        + (f" ({counts.low[i]} to {counts.high[i]})" if counts.low else "")
        for i in some
    )


UP_TO_LENGTH = " if the loss has no temperature and tensors have one factor, else up to one factor"
MEAN = "If it is of several samples of one class, what was found are their means."


def headline(report: AuditReport) -> str:
    """Return the verdict of one share in one or two sentences."""
    worth = _worth_saying(report)
    texts = report.input.text is not None
    apart = [
        leak for leak in worth
        if leak.of_samples and leak.of_samples(report.samples)
        and not (texts and leak is Leak.INPUT)
    ]  # fmt: skip
    parts = leaked_of_samples(report.samples, apart)
    parts += [_leaked(report, leak) for leak in worth if leak not in apart]
    if not parts and report.label.proved == "AMBIGUOUS":
        said = "This update narrows the label down to a set, and proves no more."
    elif not parts:
        tried = _in_state(report, State.NO_SUCCESS)
        said = f"Nothing was proved of the {listed(tried)}: {FAILED}." if tried else ""
    elif report.several:
        count = report.composition.samples
        said = f"This update of at least {count} samples or steps gives away {listed(parts)}."
    else:
        this = "This" if report.fit.holds else "Even so this"
        said = f"{this} update gives away {listed(parts)}."
    void = listed(_in_state(report, State.CONTRADICTED))
    untried = listed(_in_state(report, State.NOT_ATTACKED))
    against = [contradiction(report), f"So nothing is known of the {void}." if void else ""]
    grey = f"Not attacked: {untried}." if untried else ""
    return " ".join(filter(None, [*against, said, MEAN * report.or_mean, grey]))


def states_in_brief(report: AuditReport) -> str:
    """Return what is known of every kind of leak, in a line."""
    void = State.CONTRADICTED
    return ", ".join(
        f"{leak.value} {'not known' if state is void else state.value}"
        for leak, state in report.states.items()
    )


def gate(report: AuditReport, stop: Sequence[Leak]) -> str:
    """Return why a gate is closed: what leaked, and what is not known, of what must not leak."""
    leaked = [leak.short for leak in stop if leak in report.leaks]
    unknown = [leak.short for leak in stop if leak in report.unattacked]
    parts = [
        f"the {listed(leaked)} must not leak, and did" if leaked else "",
        f"nothing is known of the {listed(unknown)}" if unknown else "",
    ]
    return f"{report.name}: {'; '.join(filter(None, parts))}. {headline(report)}"


def _in_state(report: AuditReport, state: State) -> list[str]:
    """Return the kinds of leak of one share that are in a state."""
    return [leak.short for leak, own in report.states.items() if own is state]


def contradiction(report: AuditReport) -> str:
    """Return what the numbers of an update contradict, in sentences; nothing if they do not."""
    return " ".join(one.sentence for one in report.fit.contradicted)


def _leaked(report: AuditReport, leak: Leak) -> str:
    """Return what leaked, in words. Of a label it says how much."""
    recovery = report.label.recovery
    if leak is Leak.INPUT and report.input.text is not None:
        return leaked_of_text(report.input.text, report.several)
    if leak is Leak.LABEL and recovery.tags and recovery.label is not None:
        return f"which of {len(recovery.label)} labels it has"
    if leak is not Leak.LABEL or report.label.proved == "UNIQUE":
        plain = " if the loss is a plain cross-entropy" if report.of_open_loss else ""
        return leak.its + plain * (leak is Leak.LABEL)
    if report.several:  # all of them are known by the counts
        return "how many samples of each class are in it"
    if recovery.readings:
        return "its label if the update is read as it is said below"
    return f"its label to within {written(recovery.error)} (L1)"


def _worth_saying(report: AuditReport) -> list[Leak]:
    """Return what leaked, without what follows from something said already."""
    known = report.label.known
    implied = {Leak.CLASS} if known else set()
    only = Leak.CLASS in report.leaks and not report.several
    if only or report.label.class_index is not None or known:
        implied |= {Leak.COMPOSITION}
    return [leak for leak in Leak if leak in report.leaks - implied]


def resting_on(report: AuditReport) -> Iterator[str]:
    """Yield what the findings on one share rest on, in sentences."""
    yield from report.knowledge.assumptions(report.label.recovery)
    found, known = report.input, report.samples.known
    if found.text is not None and found.leaked:
        yield "A word counts as leaked where no other explains the gradient."
    elif found.pixels is not None and not found.method.exact:
        yield (
            "The image that was found by a search is a candidate, not a proof: it counts as leaked "
            "if it explains the update and a second start led to the same image."
        )
    elif found.pixels is not None and found.method == Method.SOLVING and not found.determined:
        yield (
            "The image explains the update, which leaves some directions open: the predicted error "
            "takes these to be as unsure as images are in general."
        )
    elif found.pixels is not None and found.method == Method.SOLVING:
        yield (
            "The image is the only one near it that explains the update, and none of its shifted, "
            "mirrored or exchanged forms does; that no image far away does is not shown."
        )
    elif found.pixels is not None:
        yield "A predicted error is evidence that the input leaks, not a proof."
    if known is not None:
        yield _of_samples(known)


def _of_samples(known: Knowledge) -> str:
    """Return what the attack on single samples rests on beside what every attack does."""
    said = (
        f"{known.samples} samples, as was said" if known.samples is not None
        else "as many samples as its head's gradient shows, no two of them with the same feature"
    )  # fmt: skip
    labels = "one-hot, smoothed or mixed of two classes, or any where ReLU layers tell them"
    named = labels if known.family is None else describe_family(known.family)
    return f"The update is one step on {said}; their labels are {named}."


def treatment_words(done: Treatment) -> str:
    """Return what was done to an update as it continues a sentence; empty if it is nothing."""
    said = f" on the largest {done.kept:.0%} of the entries" if done.prunes else ""
    return f"{said}, clipped to {done.length:.0%} of its length" if done.clips else said


def utility_words(left: Utility) -> str:
    """Return what is left of an update, as a table shows it."""
    said = f"cosine {left.cosine:.2f}"
    return said if left.loss is None else f"{said}, {left.loss:.0%} of the fall in loss"


def summary(audit: Audit) -> str:
    """Return the verdict of many shares, and what it rests on if that is unusual."""
    said, total = [_summary(audit)], len(audit.reports)
    count = sum(report.several for report in audit.reports)
    if count and total > 1:
        verb = "mixes" if count == 1 else "mix"
        said.append(f"{count} of {total} {verb} several samples or steps: {_labels_of(audit)}.")
    if total > 1 and not any(report.input.asked for report in audit.reports):
        said.append("Not attacked: input.")
    return " ".join(filter(None, [*said, unaffordable(audit), *audit.cautions]))


def _labels_of(audit: Audit) -> str:
    """Return what is known of labels of single samples in updates of several."""
    proved = sum(bool(report.samples.proved) for report in audit.reports)
    if proved:
        return f"labels of single samples were proved in {proved}"
    tried = any(report.samples.attacked for report in audit.reports)
    return "no label of one was proved" if tried else "no label of one was attacked"


def _summary(audit: Audit) -> str:
    total = len(audit.reports)
    if not total:
        return "No update could be audited."
    if total == 1:
        return headline(audit.reports[0])
    counts = {
        leak: n for leak in Leak if (n := sum(leak in _worth_saying(r) for r in audit.reports))
    }
    if counts.get(Leak.CLASS):  # an exact label says its class
        counts[Leak.CLASS] = audit.count(Leak.CLASS)
    if not counts:
        found = {state for report in audit.reports for state in report.states.values()}
        ends = {State.NO_SUCCESS: FAILED, State.CONTRADICTED: "they contradict what was stated"}
        why = next((said for state, said in ends.items() if state in found), "none was attacked")
        return f"Of {total} updates none was proved to leak: {why}."
    exact = all(r.label.proved == "UNIQUE" for r in audit.reports if r.label.known)
    if set(counts.values()) == {total}:
        parts = [_of_many(audit, leak, total, exact) for leak in counts]
        return f"All {total} updates give away {listed(parts)}."
    said = [
        f"{n} {'gives' if n == 1 else 'give'} away {_of_many(audit, leak, n, exact)}"
        for leak, n in counts.items()
    ]
    return f"Of {total} updates, {listed(said)}."


def _of_many(audit: Audit, leak: Leak, count: int, exact: bool) -> str:
    """Return what several shares give away of one kind."""
    if leak is Leak.LABEL and not exact:
        return "its label" if count == 1 else "their label"
    found = [r.input.text for r in audit.reports if leak is Leak.INPUT and leak in r.leaks]
    if texts := [text for text in found if text is not None]:
        return leaked_of_texts(texts, count)
    return leak.its if count == 1 else leak.their


def not_attacked(audit: Audit) -> str:
    """Return a sentence on the shares whose input was not attacked, and why; else nothing."""
    reasons = [
        report.input.message
        for report in audit.reports
        if report.input.asked and report.states[Leak.INPUT] is State.NOT_ATTACKED
    ]
    if not reasons:
        return ""
    total = len(audit.reports)
    which = "" if total == 1 else f" of {len(reasons)} of {total} updates"
    return f" Input{which}: not attacked ({'; '.join(dict.fromkeys(reasons))})."
