"""The text above and below the table."""

from __future__ import annotations

LEGEND = """\
Each cell: the verdict on the label, then five marks for label, class, feature, input and class
composition, in this order. A fault would stand beside them in bold.

| mark | meaning |
|---|---|
| ● | leaked |
| ○ | attacked without success (green on the page) |
| · | not attacked (grey on the page) |
"""
JUDGING = """\
## How it is judged

- *Wrong UNIQUE*: the label is further from the truth than the bound that came with it.
- *Another wrong claim*: a complete set of labels without the true one, a label called known that
  is not true to within 0.1 in L1, a class that is not the true one, a class called present that is
  in no label, counts outside their bounds, a feature that is off by more than 1 %, an input called
  recognisable below 20 dB.
- *Green where something leaks*: the audit says that an attack did not succeed, but it names a label
  that is true to within 0.1 in L1 and bounds its error by as much, or has it as another reading of
  the same numbers; or its feature is true to within 1 % and said to be; or its image has 20 dB or
  more; or `BatchReader` proves true classes on the same numbers.
- *Green where nothing was tried*: the audit says that an attack did not succeed although none
  applies: a label of one sample in an update of several or in a pattern of signs, classes where the
  head has neither a bias nor features of one sign or where noise makes the reader give up, an input
  nobody searched for.

Labels of single samples are one-hot, smoothed and mixed in turn, those of batches one-hot. The
learning rate is 0.1 (Adam: 0.001). *Delta* is `--kind delta --lr`; *not said* is the same file
without a word about it. *Clipped* is a step whose gradient was clipped to a norm of 0.1, which the
auditor does not know. *Momentum* is the second step of a client whose first was on another sample.
The sizes of batches are told (`--samples`); *5 steps* are local steps on batches of two. Noise is
Gaussian, on every entry, and not declared. Gradients are not matched (`--match-seconds 0`), so that
inputs are attacked in chains only.
"""
