"""The text above and below the tables."""

from __future__ import annotations

LEGEND = """\
| cell | meaning |
|---|---|
| proved | a label, a sample's label, an input or every word is proved, and right |
| leaked | something leaked (a class, a feature, words …), and what was said of it is right |
| candidate | a set of labels or an image was found and not claimed |
| contradicted | the update contradicts what was assumed or told; the exit code is 5 |
| refused | the update was not accepted; the exit code is 2 |
| not attacked | nothing was recovered, and nothing was tried |
| no success | attacks were carried out and did not succeed |
| **WRONG** | a claim is not true |
| **GREEN** | nothing leaked, exit code 0, although something simple leaks or nothing was tried |
| \\* | right, but a tile beside what leaked is green although that leaks or was not tried |
| ° | right, but a tile beside what leaked is grey although one line of arithmetic reads it |
"""
JUDGING = """\
## How it is judged

A claim is wrong if

- a label is called unique, or known within a bound, and is further from the truth than that;
- a complete set of labels does not hold the true one;
- a class is named, or with a probability above 0.9, that is not the true one;
- a class is proved to be among the labels that no sample has, or counts exclude the true ones;
- a label is proved for a sample, and none of the samples has it, or another one has it already;
- a feature is off by more than 1 % (at the true length, where that is said to rest on more; by the
  mean of all samples, where it is said that it may be of several);
- an input is more than 3 dB worse than predicted, and below 20 dB if it counts as leaked;
- a word that is called certain does not occur, or not there, or most of the words that are called
  likely do not;
- an update that bears out all that is assumed is said to contradict it, or is refused;
- the audit ends in a traceback.

An all-clear is none if nothing leaked, the exit code is 0 with nothing named to fail on, and one of
these reads the truth, or nothing was really attacked (all is grey, or what is green had no chance):

- the entries of one sign of the head's bias are true classes;
- the quotient of the gradients of weight and bias is what entered the first layer, or the head;
- the rows of the table of words that moved are the words.

Not really attacked is a label of one sample in an update of several or in a pattern of signs, a
label behind noise where there is none, and classes where signs say nothing.

Labels are one-hot unless the kind says otherwise. Models have random weights or were trained for
some steps. Gradients are not matched (`--match-seconds 0`): inputs are computed or not attacked.
"""
