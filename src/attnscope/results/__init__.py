"""Results that show themselves: short in a session, as a static fragment in a notebook, as charts, as a page.

Results come from other rooms (`ScanResult`, `Diagnosis`, `Comparison`, `Reproduction`, `AuditReport`); all of them are
a `Result`. Their words and pictures are here:

| file | contents |
|---|---|
| `base` | `Result`: repr, notebook output, summary, show; `Summary` |
| `html`, `heat_map` | fragments of HTML and SVG: light and dark, no script, no network |
| `altair_charts` | the common style of charts, and how they are displayed without a network |
| `heads`, `curves`, `patterns` | what is shown, as tables |
| `scan_view`, `head`, `head_charts` | a scan, one head of it, and the charts of both |
| `diagnosis_view`, `comparison_view`, `audit_view` | the words and charts of the others |
| `loading` | `load_run` |
"""
