# %% [markdown]
# # A scan in a notebook
# Run the cells in Jupyter, VS Code or any editor that knows `# %%`. The last line of each cell shows itself.

# %%
import attnscope

result = attnscope.scan(diagnose=True)  # the embedded model and text; a bar shows the time left
result

# %% [markdown]
# One line for each head, as a polars DataFrame. Which heads need most tokens, and how does that grow with the length?

# %%
columns = ["layer", "head", "state", "sureness", "tokens_needed", "growth_exponent", "participation", "sink_weight"]
result.heads.select(columns).sort("tokens_needed", descending=True, nulls_last=True).head(10)

# %%
result.plot.map("tokens_needed") | result.plot.map("state")

# %% [markdown]
# The head that needs most, in detail.

# %%
layer, head = result.heads.sort("tokens_needed", descending=True, nulls_last=True).row(0)[:2]
result.head(layer, head)

# %%
result.plot.pattern(layer, head, hide_first=True) | result.plot.weights(layer, head)

# %%
result.plot.curve("separability") | result.plot.curve("separability", layer, head)

# %% [markdown]
# What would other normalizers change?

# %%
comparison = attnscope.compare(normalizers=["softmax", "ssmax", "entmax15"], lengths=[128, 512])
comparison

# %%
comparison.plot.capacity()

# %%
result.show()  # the whole report
