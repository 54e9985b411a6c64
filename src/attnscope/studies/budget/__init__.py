"""Which keys each head should keep when only a share of all keys can be stored, and whether that is better than others.

| file | contents |
|---|---|
| `running` | `budget`: settings, windows, measuring, comparing; `BudgetResult` |
| `settings` | settings, checked |
| `needs` | the error of every key-value head by kind and number of kept keys |
| `allocation` | the budgets with the smallest total error; per layer, and for DuoAttention |
| `selection` | which keys each of the compared methods keeps |
| `comparison` | the methods in the model, on fresh text and on a recall task; paired intervals |
"""
