"""The result of a diagnosis: what `findings.json` holds, as a table, a map and words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope.columns import head_name, label
from attnscope.diagnosis.states import GROUPS, NO_LABEL, RULES, STATES, limit_words, most_pressing_first, times
from attnscope.errors import OutputError, parameter
from attnscope.show import palette
from attnscope.show.blocks import (
    Block,
    Cell,
    Chart,
    Details,
    Heading,
    HeadMap,
    Items,
    Key,
    Note,
    Span,
    Table,
    Tone,
    Verdict,
)
from attnscope.show.numbers import counted, measured, number, short_path
from attnscope.show.result import Result
from attnscope.store.folders import as_file, write_all
from attnscope.store.tables import load_findings

if TYPE_CHECKING:
    from attnscope.show.charts import OfflineChart

LABELS: dict[str, pl.DataType] = {
    "state": pl.String(),
    "sureness": pl.Float64(),
    "edge": pl.String(),
    "withdrawn": pl.String(),
}
# Measured by a scan and by a diagnosis, on other rows: the diagnosis has them under these names.
MEASURED_TWICE = {f"{name}_diagnosed": name for name in ("separability", "participation", "sink_weight", "max_weight")}
EVIDENCE = (
    *MEASURED_TWICE,
    *(
        name
        for column in columns.DIAGNOSIS
        if column.name not in LABELS
        for name in ((column.name, f"{column.name}_low", f"{column.name}_high") if column.interval else (column.name,))
    ),
)


@dataclass(frozen=True, repr=False, eq=False)
class Diagnosis(Result, Mapping[str, Any]):
    """What a diagnosis found: every head's state with its evidence, ranked findings, a verdict.

    >>> found = attnscope.diagnose(length=64, windows=2, rows=8, progress=False)
    >>> found.headline == found["verdict"]["headline"]
    True
    >>> found.heads.height == len(found["heads"])
    True

    It is also the mapping that `findings.json` holds (docs/diagnosis.md): `found["heads"]`, `found["findings"]`,
    `found["verdict"]`, `found["agreement"]`, `found["verification"]`, `found["thresholds"]`.

    Attributes
    ----------
    content
        The content of `findings.json`.
    """

    content: dict[str, Any]

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        headline: str = self.content["verdict"]["headline"]
        return headline

    @cached_property
    def heads(self) -> pl.DataFrame:
        """One line for each head: `layer`, `head`, `state`, `sureness` and the evidence (docs/python.md)."""
        return diagnosed_heads(self.content)

    @property
    def plot(self) -> DiagnosisPlots:
        """Charts: `plot.map("state")`, `plot.map("tokens_needed")`."""
        return DiagnosisPlots(self)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self.content == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def write(self, folder: Path) -> None:
        """Write `findings.json` into a folder that is locked already."""
        write_all(folder, {"findings.json": as_file(self.content)})

    @classmethod
    def load(cls, folder: str | Path) -> Diagnosis:
        """Read a diagnosis that was saved before."""
        content = load_findings(Path(folder))
        if content is None:
            raise OutputError(f"{str(folder)!r} has no findings.json; diagnose")
        return cls(content)

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The verdict, the heads that matter most, the map of states; the findings behind a fold."""
        shown: list[Block] = [Heading("Diagnosis", subject(self)), *verdict_blocks(self, verbose), state_map(self)]
        return [*shown, Chart("Tokens needed", lambda: self.plot.map("tokens_needed")), *details(self)]

    def page_title(self) -> str:
        """What a browser calls the page."""
        return f"diagnosis of {short_path(self['model'])}" if self.get("model") else "diagnosis"

    def brief(self) -> list[str]:
        """What was run, the verdict, how far to trust it, the findings."""
        agreed, checked = self["agreement"], self["verification"]
        kappa = "" if agreed["kappa"] is None else f" (kappa {agreed['kappa']:.2f})"
        trust = f"Labels from the two halves of the windows agree for {agreed['share']:.0%} of the heads{kappa}"
        if checked:
            held = sum(one["held"] for one in checked["predictions"])
            trust += f"; inside the model {held} of {len(checked['predictions'])} held"
        titles = [one["title"] for one in self["findings"]]
        findings = f"{counted(len(titles), 'finding')}, the first: {titles[0]}" if titles else "No findings"
        return [f"Diagnosis: {subject(self)}", *verdict_lines(self), trust, findings]

    def calls(self) -> tuple[str, ...]:
        return (".summary()", ".heads", '["findings"]', '.plot.map("tokens_needed")', ".show()")


class DiagnosisPlots:
    """The charts of a diagnosis."""

    def __init__(self, result: Diagnosis) -> None:
        self._result = result

    def map(self, measure: str = "state") -> OfflineChart:
        """A cell for each head, colored by its state or by a column of `.heads`.

        >>> found = attnscope.diagnose(length=64, windows=2, rows=8, progress=False)
        >>> found.plot.map("tokens_needed").save("tokens_needed.svg")

        Parameters
        ----------
        measure
            "state", or a column of `.heads` with numbers, e.g. "tokens_needed".

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        return state_chart(self._result.heads, measure, self._result, short_path(self._result.get("model", "")))


def diagnosed_heads(findings: Mapping[str, Any] | None) -> pl.DataFrame:
    """What a diagnosis found for every head; without a diagnosis no lines."""
    schema = {"layer": pl.Int32(), "head": pl.Int32()} | LABELS | dict.fromkeys(EVIDENCE, pl.Float64())
    lines = [
        {name: head.get(name) for name in ("layer", "head", *LABELS)}
        | {name: _evidence(head, MEASURED_TWICE.get(name, name)) for name in EVIDENCE}
        for head in (findings["heads"] if findings else ())
    ]
    return pl.DataFrame(lines, schema=schema)


def _evidence(head: Mapping[str, Any], name: str) -> float | None:
    """A number of a head's entry or of its evidence; older findings lack some."""
    value: float | None = head["evidence"].get(name, head.get(name))
    return value


Looks = dict[str, dict[str, str]]
"""Color, mark, short text and sentence of every state."""

_SEVERITIES: dict[str, Tone] = {"act": "bad", "watch": "warning", "note": "strong"}
_LISTED = 8


def verdict_lines(findings: Mapping[str, Any]) -> list[str]:
    """The verdict in lines of a repr."""
    verdict = findings["verdict"]
    states = [head["state"] or NO_LABEL for head in findings["heads"]]
    counts = sorted(((states.count(state), state) for state in set(states)), key=lambda one: (-one[0], one[1]))
    ranked = [one["name"] for one in verdict.get("heads", ())]  # older findings rank no heads
    step = verdict.get("next")
    return [
        f"Verdict: {verdict['headline']}",
        f"States: {', '.join(f'{count} {state}' for count, state in counts)}",
        *([f"{_ranked_title(verdict)}: {', '.join(ranked)}"] if ranked else []),
        *([f"Suggested: {step['python']}"] if step else []),
    ]


def subject(result: Mapping[str, Any]) -> str:
    """What was diagnosed."""
    model = result.get("model")  # older findings do not name it
    what = f"{short_path(model)} on {short_path(result['text'])}; " if model else ""
    windows = counted(result["windows"], "window")
    return f"{what}{counted(len(result['heads']), 'head')}, {windows} of {result['length']:,} tokens"


def verdict_blocks(findings: Mapping[str, Any], verbose: bool = False) -> list[Block]:
    """The headline, the groups of heads, how far to trust them, and the heads that matter most."""
    verdict = findings["verdict"]
    found: list[Block] = [Verdict(verdict["headline"], "strong")]
    for group in verdict["groups"]:
        look = GROUPS[group["name"]]
        found.append(Note(group["sentence"], "" if look.color == "default" else "bad", f"{look.mark} ", 2))
    found += [Note(one["sentence"], mark="x ", indent=2) for one in verdict.get("withdrawn", ())]
    found += [Note(warning, "strong", "! ", 2) for warning in verdict.get("warnings", ())]
    found.append(Note(verdict["trust"], "soft", indent=2))
    if findings["verification"] and findings["verification"]["predictions"]:
        found.append(_tests(findings["verification"], findings["thresholds"]["held_ratio"]))
    if verdict.get("heads"):
        found += _ranked(verdict, findings["heads"], verbose)
    return found


def state_map(findings: Mapping[str, Any]) -> HeadMap:
    """A cell for each head in the color of its state, and what the colors mean."""
    looks = state_looks(findings["thresholds"], withdrawn_states(findings))
    heads = findings["heads"]
    return marked_map("Map", "the simpler rule that gives nearly the same output", heads, looks)


def marked_map(title: str, note: str, heads: list[dict[str, Any]], looks: Looks) -> HeadMap:
    """A map of the marks of heads (`layer`, `head`, `state`, `edge`, `evidence`), with the number of heads of each."""
    cells = {}
    for head in heads:
        state = head["state"] or NO_LABEL
        look = looks.get(state, {"color": palette.UNKNOWN, "mark": " "})
        words = f"{head_name(head['layer'], head['head'])} {state}"
        if "evidence" in head:
            words += f", needs {number(head['evidence']['tokens_needed'])} tokens"
        wide = f"{look['mark']}{'?' if head['edge'] else ' '}"
        cells[head["layer"], head["head"]] = Cell(look["color"], look["mark"], words, wide)
    states = [head["state"] or NO_LABEL for head in heads]
    keys = [
        Key(look["color"], look["mark"], state, look["short"], states.count(state))
        for state, look in looks.items()
        if state in states
    ]
    near = sum(head["edge"] is not None for head in heads)
    if near:
        keys.append(Key("", "?", "near a limit", "other rows could give another label", near))
    return HeadMap(title, cells, note, keys)


def details(findings: Mapping[str, Any]) -> list[Block]:
    """All findings, the most pressing first, the tests of the labels in words, and the heads left out."""
    inside: list[Block] = [block for finding in findings["findings"] for block in _finding(finding)]
    found: list[Block] = [Details("Findings", inside or [Note("None.")])]
    if findings["verification"]:
        found.append(Details("The labels inside the model", _predictions(findings["verification"])))
    left_out = [f"{head_name(one['layer'], one['head'])}: {one['reason']}" for one in findings["skipped_heads"]]
    return [*found, Details("Not diagnosed", [Items(left_out)])] if left_out else found


def _ranked_title(verdict: Mapping[str, Any]) -> str:
    """The title of the ranked heads; older findings have none."""
    return verdict.get("heads_title") or "The heads that matter most"


def _ranked(verdict: dict[str, Any], heads: list[dict[str, Any]], verbose: bool) -> list[Block]:
    """The heads that matter most in a table; the first of them, or all, in words."""
    evidence = {(head["layer"], head["head"]): head["evidence"] for head in heads}
    ranked = verdict["heads"]
    by = "kl" if ranked[0]["kl"] is not None else "residual_change"
    if ranked[0][by] is None:
        by = "error_top_share"
    ranked_by = f"{'. R' if verdict.get('heads_note') else ', r'}anked by {label(by)}: {verdict['ranked_by']}"
    rows = []
    for rank, one in enumerate(ranked, 1):
        numbers = evidence[one["layer"], one["head"]]
        value = one[by] if by in one else numbers[by]
        cells = [measured(by, value), measured("tokens_needed", numbers["tokens_needed"])]
        rows.append([f"{rank}.", one["name"], one["state"] or NO_LABEL, *cells, one["what"]])
    found: list[Block] = [Heading((Span(_ranked_title(verdict), "strong"), Span(ranked_by, "plain")), level=2)]
    if verdict.get("heads_note"):
        found.append(Note(verdict["heads_note"], "strong", "! ", 2))
    found.append(Table(["", "Head", "State", label(by), label("tokens_needed"), "What to do"], rows, "", (0, 1, 2, 5)))
    found += [
        Note(" ".join(filter(None, (one["why"], one["when"]))), mark=Span(f"{one['name']}  ", "strong"), indent=2)
        for one in (ranked if verbose else ranked[:1])
    ]
    if verdict.get("heads_when"):
        when = verdict["heads_when"]
        found.append(Note(f"They matter {when[0].lower()}{when[1:]}", indent=2))
    if not verbose and len(ranked) > 1:
        found.append(Note(f"The others in words: {parameter('verbose', True)}, or the report.", "soft", indent=2))
    return found


def _tests(checked: dict[str, Any], held_ratio: float) -> Table:
    """The tests of the labels inside the model, one line each."""
    rows = [
        [
            one["state"],
            str(one["heads"]),
            Span("held", "good") if one["held"] else Span("withdrawn", "bad"),
            times(one),
        ]
        for one in checked["predictions"]
    ]
    where = f"{counted(checked['windows'], 'other window')} of {checked['length']:,} tokens"
    note = (
        "Measured: how many times as much the label's rule changes the next-token distribution (KL) in heads where it "
        f"should as in heads where it should not. Accepted: at least {held_ratio:g} times, and more than 1 in every "
        "window."
    )
    title = f"Labels tested inside the model, on {where}"
    return Table(["Label", "Heads", "Result", "Measured"], rows, title, range(4), [note])


def _predictions(checked: dict[str, Any]) -> list[Block]:
    """Whether the predictions of the labels held inside the model, in words."""
    about = (
        "A label names a rule that should be enough for its heads and not for others; measured on "
        f"{counted(checked['windows'], 'held-out window')} of {checked['length']:,} tokens, as KL divergence of the "
        "next-token distribution."
    )
    tried = [Note(one["sentence"], mark="+ " if one["held"] else "- ", indent=2) for one in checked["predictions"]]
    untried = [
        Note(f"{state}: not tested, no head has this label or every head of its layers has.", indent=4)
        for state in checked["untested"]
    ]
    return [Note(about, "soft"), *tried, *untried]


def _finding(finding: dict[str, Any]) -> list[Block]:
    severity = Span(finding["severity"].upper(), _SEVERITIES[finding["severity"]])
    names = [head_name(layer, head) for layer, head in finding["heads"]]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = f" Heads: {', '.join(names[:_LISTED])}{more}." if names else ""
    return [
        Heading((f"{finding['rank']}. ", severity, f" {finding['title']}"), level=3),
        Note((finding["sentence"], Span(listed, "soft")), indent=3),
        Note(finding["advice"], mark="> ", indent=3),
    ]


def state_looks(thresholds: Mapping[str, Any], withdrawn: Collection[str] = ()) -> Looks:
    """Color, mark, short text and sentence of every state, the most pressing first; for withdrawn ones `NO_LABEL`."""
    words = limit_words(thresholds)
    looks = {
        state.name: {
            "color": state.color,
            "mark": state.mark,
            "short": state.short.format(**words),
            "sentence": state.sentence.format(**words),
        }
        for state in most_pressing_first()
        if state.name not in withdrawn
    }
    if withdrawn:
        short = f"{' or '.join(withdrawn)} did not hold inside the model"
        sentence = "Its label did not hold inside the model and was withdrawn."
        looks[NO_LABEL] = {"color": "#d3d6da", "mark": "x", "short": short, "sentence": sentence}
    return looks


def withdrawn_states(findings: Mapping[str, Any]) -> list[str]:
    """The labels that a verification withdrew; runs of older versions know of none."""
    return [one["state"] for one in (findings.get("verdict") or {}).get("withdrawn", ())]


def state_rules(thresholds: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rules in the order in which they are tried: the error that decides, the name of its limit, and words."""
    words = limit_words(thresholds)
    limits = {state.rule: state.limit for state in STATES.values()}
    return [{"error": rule.error, "limit": limits[rule], "words": rule.words_on_page.format(**words)} for rule in RULES]


def state_chart(
    heads: pl.DataFrame, measure: str, findings: Mapping[str, Any] | None, words: str, n: int | None = None
) -> OfflineChart:
    """A cell for each line of `heads`, colored by its state, if there are findings, or by a column with numbers."""
    from attnscope.show.charts import map_of_heads

    limits: Mapping[str, Any] = {} if findings is None else findings["thresholds"]
    numbers = {"n": n, **limit_words(limits)}
    if findings is None:
        return map_of_heads(heads, measure, words, numbers)
    looks = {name: look["color"] for name, look in state_looks(limits, withdrawn_states(findings)).items()}
    if "state" in heads.columns:
        heads = heads.with_columns(state=heads["state"].fill_null(NO_LABEL))
    return map_of_heads(heads, measure, words, numbers, looks)
