"""One share behind a defence: attacked as whoever receives it would, then scored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from softleak.audit.findings import (
    RECOGNISABLE,
    InputFinding,
    LabelFinding,
    LabelLeak,
)
from softleak.audit.inputs import recover_input
from softleak.audit.rates import Leak
from softleak.audit.reports import AuditReport
from softleak.audit.run import NamedShare, Options
from softleak.audit.subject import Subject
from softleak.audit.sweeps import known_to_the_attacker
from softleak.defenses import Defense
from softleak.inversion.chain import Chain
from softleak.metrics import label_error, psnr
from softleak.results import Recovery
from softleak.share import GradientShare

CLOSE = 0.01  # L1: a label this close is the label
GAIN = 5.0  # dB short of recognisable: no thorough walk was seen to make up for more


@dataclass(frozen=True, eq=False)
class Target:
    """A share, and what an attack on it has to reach."""

    share: NamedShare
    label: Tensor | None
    pixels: Tensor | None
    classes: frozenset[int] = frozenset()  # that an attack may name as being in the update

    @classmethod
    def of(cls, share: NamedShare, report: AuditReport) -> Target:
        """By the truth if there is one, else by what the share gave away undefended."""
        found, score = report.input, report.score
        label = report.label.recovery.label if report.label.leak is not LabelLeak.NOTHING else None
        pixels = found.pixels if found.leaked else None
        if score is not None:
            label = label if score.label_true is None else score.label_true
            pixels = pixels if score.pixels_true is None else score.pixels_true
        index = report.label.class_index
        classes = {*report.composition.present, *([] if index is None else [index])}
        return cls(share, label, pixels, frozenset(classes))


def walks(subject: Subject) -> tuple[Subject, ...]:
    """The subject as it is inverted first, by a quick walk, and then by a thorough one."""
    if subject.chain is None:
        return ()
    passes = subject.chain.passes
    quick = replace(subject, chain=Chain(subject.chain.head, passes[0]))
    return (quick, subject)[: len(passes)]


@dataclass(frozen=True, eq=False)
class Shot:
    """One defended share, with what its attacker knows of it, and what can be scored."""

    target: Target
    sent: GradientShare
    declared: GradientShare
    options: Options
    aims: frozenset[Leak]

    @classmethod
    def at(cls, target: Target, defense: Defense, options: Options, inputs: bool) -> Shot:
        """A target behind a defence; its input is attacked too if somebody asks for ``inputs``."""
        known = known_to_the_attacker(defense, target.share.share, options)
        label = frozenset() if target.label is None else frozenset({Leak.LABEL, Leak.CLASS})
        image = frozenset({Leak.INPUT}) if inputs and target.pixels is not None else frozenset()
        return cls(target, *known, label | image)

    def hits(self, leak: Leak, recovery: Recovery, subjects: tuple[Subject, ...]) -> bool:
        """Whether an attack reached what it was to reach."""
        if leak is Leak.INPUT:
            return self.sees(recovery, subjects)
        claimed = LabelFinding(recovery, 0.0).class_index  # a guess that is right is no success
        label = self.target.label
        if claimed is None or label is None:
            return False
        if leak is Leak.CLASS:
            return claimed == int(label.argmax())
        return label_error(recovery, label) <= CLOSE

    def sees(
        self, recovery: Recovery, subjects: tuple[Subject, ...], *, believed: bool = False
    ) -> bool:
        """Whether one walk after the other brings the image, the next if it is within reach.

        If so asked, what an attacker would have ``believed`` counts as well as what is true.
        """
        if self.target.pixels is None:
            return False
        for subject in subjects:
            found = recover_input(subject, self.declared, recovery, self.options.normalisation)
            if self._shows(found) or (believed and found.leaked):
                return True
            if found.psnr_predicted is None or found.psnr_predicted < RECOGNISABLE - GAIN:
                return False
        return False

    def _shows(self, found: InputFinding) -> bool:
        true = self.target.pixels
        if found.pixels is None or true is None or found.pixels.shape != true.shape:
            return False
        return psnr(found.pixels, true) >= RECOGNISABLE
