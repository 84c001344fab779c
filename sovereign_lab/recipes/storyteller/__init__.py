"""The storyteller: a small Llama that tells children's stories, trained in minutes.

In the order data flows: `grammar` writes stories, `vocabulary` learns their pieces, `corpus` turns
them into rows of token ids, `network` is the model, `train` trains it (its last part through
`quantise`), `export` writes the GGUF file, `evaluate` measures what that file tells, `card` says so.

    python -m sovereign_lab.recipes.storyteller build --out data/storyteller
"""
