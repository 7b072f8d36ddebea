"""Where the paper's text and its published code differ in a way that changes figures."""

FACTS = (
    "Success is judged by the truth: the code compares the scalar it found with the true one and "
    "discards an answer that is off. Here every sample counts, and no attack sees the truth, "
    "except in the column GT, which is given the true label.",
    "Samples whose label was not recovered are redrawn until one is (Tables 3 and 4); here none.",
    "Noise is added to the one row of the head's gradient that the attack reads; the rows its "
    "ratios are taken from stay clean (Table 5). Here it is on everything sent; one row beside it.",
    "The size of the noise is its standard deviation, not its variance (Table 5).",
    "“DLG+Ours” starts from logits fitted to the true label, not to the recovered one (Table 3). "
    "Here it starts from the recovered label.",
    "“iDLG” is the true hard label (Table 3). Here its class is read from the gradient.",
    "PSNR is that of bytes made without clamping, so that values outside the range wrap around. "
    "Here pixels are clamped and not quantised.",
    "The column α = 2, β = 2 is α = 1, β = 2 in the code (Table 4). Here it is as printed.",
    "The swarm has 500 particles and 40 iterations, not 200 and 30; the stated bound of 70 ends at "
    "50 or 66.",
)  # fmt: skip
