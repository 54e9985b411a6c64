"""How far a head reaches: what becomes of its selection at longer inputs, predicted from short windows.

| file | contents |
|---|---|
| `predicting` | `horizon`: windows, probes, measures, tables, page |
| `settings` | settings, and the windows of the text |
| `rotation`, `positions` | how keys change as they move away, found by probing the model |
| `extended_row` | rows of a window as they would be in a longer input |
| `measuring` | what is measured of every window |
| `prediction` | means, intervals, half lengths, reach |
| `verdicts`, `accuracy` | verdicts and the finding; back-test and check |
| `result` | `Horizon` |
"""
