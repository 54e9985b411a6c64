"""Scorecards: every contract that a class from a file can break, and numbers against their definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from attnscope import normalizers as nz
from attnscope.cli import run
from attnscope.errors import InputError
from attnscope.normalizers.specs import UserNormalizer, load_normalizer
from attnscope.studies.recall import contracts, measuring, running
from attnscope.studies.recall.cards import scorecard
from attnscope.studies.recall.contracts import broken_contracts, require_contracts

MINE = '''
import torch
from attnscope.normalizers import Facts, MappedNormalizer, RowMap

class Good:
    """Softmax at half the temperature, by hand."""
    def weights(self, logits, visible=None):
        z = 2 * (logits.float() if logits.dtype == torch.bfloat16 else logits)
        z = z if visible is None else z.masked_fill(~visible, float("-inf"))
        return torch.softmax(z, -1).nan_to_num(nan=0.0).to(logits.dtype)
    def lipschitz(self, length):
        return 1.0

class Twice(Good):
    def weights(self, logits, visible=None):
        return 2 * super().weights(logits, visible)

class Negative(Good):
    def weights(self, logits, visible=None):
        w = super().weights(logits, visible)
        seen = torch.ones_like(w) if visible is None else visible.to(w.dtype)
        n = seen.sum(-1, keepdim=True).clamp(min=1)
        return 2 * w - (seen / n).to(w.dtype) * (seen.sum(-1, keepdim=True) > 0)

class Positional(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits + torch.arange(logits.shape[-1]).to(logits.dtype), visible)

class NoGradient(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits.detach(), visible)

class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        return 3 * g

class WrongGradient(Good):
    def weights(self, logits, visible=None):
        return super().weights(_Wrong.apply(logits), visible)

class Overflows(Good):
    def weights(self, logits, visible=None):
        e = torch.exp(10 * logits)
        return e / e.sum(-1, keepdim=True)

class Flat(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits, visible).flatten()

class Doubles(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits, visible).double()

class NoMask:
    def weights(self, logits):
        return torch.softmax(logits.float(), -1).to(logits.dtype)

class IgnoresMask(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits)

class TooSmall(Good):
    def lipschitz(self, length):
        return 0.1

class TooSmallForLongRows(Good):
    facts = Facts(length_aware=True)
    def weights(self, logits, visible=None):
        n = logits.shape[-1] if visible is None else visible.sum(-1, keepdim=True).clamp(min=1)
        return super().weights(logits * torch.as_tensor(n).log().to(logits.dtype), visible)
    def lipschitz(self, length):
        return 2.0

class NotANumber(Good):
    def lipschitz(self, length):
        return float("nan")

class Writes(Good):
    def weights(self, logits, visible=None):
        with torch.no_grad():
            logits -= logits.amax(-1, keepdim=True)
        return super().weights(logits, visible)

class WritesUnderTheMask(Good):
    def weights(self, logits, visible=None):
        if visible is not None:
            logits.masked_fill_(~visible, float("-inf"))
        return super().weights(logits, visible)

class WritesTheMask(Good):
    def weights(self, logits, visible=None):
        found = super().weights(logits, visible)
        if visible is not None:
            visible.fill_(True)
        return found

class Noise(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits + 0.01 * torch.randn_like(logits), visible)

class PlainExponentials(Good):
    def weights(self, logits, visible=None):
        e = logits.exp() if visible is None else logits.exp() * visible
        return (e / e.sum(-1, keepdim=True)).nan_to_num(nan=0.0)

class ByRank(Good):
    facts = Facts(shift_invariant=False)
    def weights(self, logits, visible=None):
        z = logits if visible is None else logits.masked_fill(~visible, float("-inf"))
        rank = z.argsort(-1, descending=True).argsort(-1)
        return torch.softmax(z / (1 + 0.1 * rank), -1).nan_to_num(nan=0.0).to(logits.dtype)

class NoBounds(Good):
    def weight_bounds(self, length, low, high):
        return float("nan"), float("nan")

class BoundsOfShortRows(Good):
    def weight_bounds(self, length, low, high):
        return (0.0, 1.0) if length <= 7 else (0.0, 1e-4)

class NormOfShortRows(Good):
    def jacobian_norm(self, logits, visible=None):
        from attnscope.normalizers import get
        norm = 2 * get("softmax").jacobian_norm(2 * logits, visible)
        return norm if logits.shape[-1] <= 7 else norm / 2

class NormsTooFew(Good):
    def jacobian_norm(self, logits, visible=None):
        return torch.zeros(1)

class Learned(torch.nn.Module):
    facts = Facts(sums_to_one=False, shift_invariant=False)
    def __init__(self):
        super().__init__()
        self.sink = torch.nn.Parameter(torch.tensor(0.3))
        self.dropout = torch.nn.Dropout(0.5)
    def weights(self, logits, visible=None):
        z = logits if visible is None else logits.masked_fill(~visible, float("-inf"))
        z = torch.cat([z, self.sink.to(z.dtype).expand(z[..., :1].shape)], -1)
        return self.dropout(torch.softmax(z, -1)[..., :-1])

class WithoutFacts(MappedNormalizer):
    name = "without_facts"
    def row_map(self, n):
        return RowMap("softmax")

class OtherDimension(Good):
    def weights(self, logits, visible=None):
        return super().weights(logits.mT, None).mT if logits.ndim > 2 else super().weights(logits, visible)

class NoZeros(Good):
    facts = Facts(sparse=True)

class Zeros(Good):
    def weights(self, logits, visible=None):
        w = super().weights(logits, visible)
        w = torch.where(w < 0.4 * w.amax(-1, keepdim=True), 0, w)
        return w / w.sum(-1, keepdim=True).clamp(min=1e-30)

class OwnBoundsNeeded(Good):
    facts = Facts(shift_invariant=False)
    def weights(self, logits, visible=None):
        z = logits.square() + 1
        z = z if visible is None else z * visible
        return z / z.sum(-1, keepdim=True).clamp(min=1)

class Exits(Good):
    def weights(self, logits, visible=None):
        raise SystemExit(3)

class FactsAsDict(Good):
    facts = {"sparse": True}

class Prints(Good):
    def weights(self, logits, visible=None):
        print("not a result")
        return super().weights(logits, visible)

class Raises(Good):
    def weights(self, logits, visible=None):
        raise KeyError("no such thing")

class Declared(Twice):
    facts = Facts(sums_to_one=False, at_most_one=False)
    def lipschitz(self, length):
        return 2.0

class Needs:
    def __init__(self, size):
        self.size = size
    weights = Good.weights

class Nothing:
    pass
'''


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize(
    ("name", "contract", "words"),
    [
        ("Twice", "sum", "sum to 2, not to one"),
        ("Negative", "non-negative", "give the negative weight -0.1429"),
        ("Positional", "permutation-equivariant", "a permutation of the logits"),
        ("NoGradient", "gradient", "the weights have no gradient"),
        ("WrongGradient", "gradient", "differs from finite differences"),
        ("Overflows", "finite", "give [0, 0, 0, 0, 0"),
        ("Flat", "shape and dtype", "must have that shape, received (42,)"),
        ("Doubles", "shape and dtype", "weights of torch.float32 logits must be torch.float32, received torch.float64"),
        ("NoMask", "mask", "weights(logits, visible) must take a mask"),
        ("IgnoresMask", "mask", "keys that are not visible get weight"),
        ("TooSmall", "Lipschitz constant", "lipschitz(2) is 0.1, below the Jacobian norm 1 of"),
        ("TooSmallForLongRows", "Lipschitz constant", "lipschitz(64) is 2, below the Jacobian norm 4.15888 of"),
        ("NotANumber", "Lipschitz constant", "lipschitz(2) must be a number of at least 0, or inf; received nan"),
        ("Writes", "logits unchanged", "weights(logits) changes its argument"),
        ("WritesUnderTheMask", "logits unchanged", "weights(logits, visible) changes logits"),
        ("WritesTheMask", "logits unchanged", "weights(logits, visible) changes visible"),
        ("Noise", "same in every call", "between two calls"),
        ("PlainExponentials", "sum", "1000] sum to 0, not to one"),
        ("ByRank", "permutation-equivariant", "a permutation of the logits"),
        ("NoBounds", "weight bounds", "weight_bounds of 7 logits are nan and nan"),
        ("BoundsOfShortRows", "weight bounds", "weight_bounds of 64 logits are 0 and 0.0001"),
        ("NormOfShortRows", "Jacobian", ", ...] is 0."),
        ("NormsTooFew", "Jacobian", "jacobian_norm of 5 rows must have the shape (5,), received (1,)"),
        ("OtherDimension", "rows alone", "in logits of shape (3, 2, 2, 7), a weight of"),
        ("NoZeros", "exact zeros", "declared sparse, but none of 513 logits"),
        ("Zeros", "exact zeros", "not declared sparse, but"),
        ("OwnBoundsNeeded", "weight bounds", "it needs a method weight_bounds"),
        ("Exits", "shape and dtype", "SystemExit: 3"),
        ("Raises", "shape and dtype", "KeyError: 'no such thing'"),
    ],
)
def test_a_broken_contract_is_named_with_what_was_found(mine: Path, name: str, contract: str, words: str) -> None:
    broken = broken_contracts(load_normalizer(f"{mine}:{name}"))
    assert words in broken[contract]
    with pytest.raises(InputError, match=contract):
        require_contracts(f"{mine}:{name}")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["Good", "Declared", "Learned"])
def test_a_class_that_keeps_its_promises_breaks_nothing(mine: Path, name: str) -> None:
    assert broken_contracts(load_normalizer(f"{mine}:{name}")) == {}


@pytest.mark.parametrize("name", [*sorted(set(nz.names()) - {"topk"}), "lipmix:gate=0"])
def test_the_normalizers_of_the_package_break_nothing(name: str) -> None:
    assert broken_contracts(nz.parse(name)) == {}


def test_the_class_in_the_documentation_breaks_nothing(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scorecard.md").read_text("utf-8")
    path = tmp_path / "mine.py"
    path.write_text(page.split("```python\n")[1].split("```")[0])
    assert broken_contracts(load_normalizer(f"{path}:MyNormalizer")) == {}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("missing.py:Good", "there is no file"),
        ("{mine}:Absent", "has no class Absent; classes with `weights`: Good"),
        ("{mine}:Nothing", r"needs a method weights\(logits, visible=None\)"),
        ("{mine}:Needs", "cannot be made without arguments: TypeError"),
        ("{broken}:Good", "cannot be run: ZeroDivisionError"),
        ("{mine}", "name the class in it too"),
        ("{mine}:", "name the class in it too"),
        ("{mine}:FactsAsDict", r"facts must be attnscope.normalizers.Facts\(...\), received dict"),
        ("{mine}:WithoutFacts", r"a subclass of Normalizer declares its facts: facts = Facts\(...\)"),
        ("hardmax", "no normalizer is named"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused(mine: Path, tmp_path: Path, spec: str, words: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(InputError, match=words):
        load_normalizer(spec.format(mine=mine, broken=broken))


def brute_limit(z: Tensor, constant: float) -> float:
    s = sorted(z.tolist(), reverse=True)
    return min(1 / m + constant * (s[0] - sum(s[:m]) / m) for m in range(1, len(s) + 1))


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "lipmix"])
def test_the_share_of_the_limit_is_the_top_weight_over_theorem_s(name: str) -> None:
    normalizer, z = nz.get(name), measuring.gapped_rows(64)[:5]
    line = measuring.selectivity(normalizer, "gapped", z)
    tops, norms = [], []
    for row in z:
        tops.append(float(normalizer(row).max()) / brute_limit(row, normalizer.lipschitz(64)))
        jacobian = torch.autograd.functional.jacobian(normalizer, row)
        norms.append(float(torch.linalg.matrix_norm(jacobian, 2)))
    assert line["share_of_limit"] == pytest.approx(sum(tops) / 5)
    assert line["jacobian_norm"] == pytest.approx(sum(norms) / 5, rel=1e-5)
    assert line["share_of_limit"] <= 1 + 1e-9


def test_theorem_s_is_not_applied_where_it_does_not_speak() -> None:
    for name in ("topk", "sa_softmax_raw", "sigmoid"):
        assert measuring.selectivity(nz.get(name), "random", measuring.random_rows(64))["share_of_limit"] is None


def test_a_top_weight_above_theorem_s_shows_that_the_lipschitz_constant_is_wrong() -> None:
    class Jumps:  # nearly flat everywhere, but for a jump to the largest logit: no derivative shows it
        def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
            first, second = logits.topk(2, -1).values.unbind(-1)
            flat = torch.softmax(0.001 * logits, -1)
            return torch.where((first - second > 1)[..., None], (logits == first[..., None]).to(flat) + 0 * flat, flat)

        def lipschitz(self, length: int) -> float:
            return 0.001

    z = measuring.gapped_rows(64)
    allowed = brute_limit(z[0], 0.001)
    with pytest.raises(
        InputError, match=rf"lipschitz\(64\) is 0.001, .* at most {allowed:.6g} \(Theorem S\), and has 1"
    ):
        measuring.selectivity(UserNormalizer(Jumps(), "Jumps"), "gapped", z[:1])


@pytest.mark.parametrize(
    ("settings", "words"), [({"plan": running.Plan(seeds=1)}, "seeds"), ({"workers": 0}, "workers")]
)
def test_a_wrong_setting_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.delattr(measuring, "sample")
    with pytest.raises(InputError, match=words):
        scorecard(["softmax"], out=tmp_path / "card", progress=False, **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--seeds", "--effort", "--workers"])
def test_settings_of_a_training_that_is_left_out_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scorecard", "softmax", "--no-recall", option, "3", "--out", str(tmp_path / "card")]) == 2
    assert "nothing is trained with --recall or --no-recall: leave out --seeds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_contracts_of_a_file_are_tested_once_for_each_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "changing.py"
    file.write_text(
        "import torch\n\nclass Half:\n    def weights(self, z, visible=None):\n        return z * 0 + 0.5\n"
    )
    tested = []
    monkeypatch.setattr(contracts, "CONTRACTS", {"counted": lambda f: tested.append(f)})
    for _ in range(2):
        contracts.require_contracts(f"{file}:Half")
    assert len(tested) == 1
    file.write_text(file.read_text("utf-8").replace("0.5", "0.25"))
    contracts.require_contracts(f"{file}:Half")
    assert len(tested) == 2


def test_the_command_writes_a_page_of_what_it_measured(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_TIMED_ROWS", 64)
    monkeypatch.setattr(measuring, "ROW_LENGTHS", (64, 128))
    monkeypatch.setattr(measuring, "REAL_LENGTHS", (64, 128))
    names = ("softmax", f"{mine}:Prints")
    monkeypatch.setattr(running, "_trained", lambda cells, workers: ((cell, running.run_cell(cell)) for cell in cells))
    plan = running.Plan(names, ("max",), budgets=(1.5, 6.0), seeds=2, length_ratios=(1, 16), effort=0.002, examples=5)
    running.recall(running.changed(plan, budgets=(float("inf"), 1.5, 6.0)), out=tmp_path / "recall", progress=False)
    capsys.readouterr()
    command = ["scorecard", *names, "--recall", str(tmp_path / "recall"), "--out", str(tmp_path / "card"), "--json"]
    assert run(command) == 0
    data = json.loads(capsys.readouterr().out)
    assert [card["normalizer"] for card in data["cards"]] == list(names)
    # The user's class is softmax at half the temperature: what it gives on real logits is known.
    model, ids = measuring.sample()
    z = measuring.real_rows(model, ids)[128]
    lines = {line["length"]: line for line in data["cards"][1]["selectivity"] if line["logits"] == "real"}
    assert lines[128]["max_weight"] == pytest.approx(float(torch.softmax(2 * z, -1).amax(-1).mean()), rel=1e-9)
    assert {line["normalizer"] for line in data["capacity"]} == {"own", *names}
    page = (tmp_path / "card" / "scorecard.html").read_text("utf-8")
    assert "Share of the limit" in page
    assert "<th>Prints</th>" in page  # a path of any length would push columns off the page
    assert f"{mine}:Prints</th>" not in page
    assert page.count("data:image/svg+xml") == 2
    assert "default-src 'none'" in page
    assert f"computed in this run but recall, which is read from {tmp_path / 'recall'}" in page


def test_the_models_own_normalizer_and_softmax_have_the_same_capacity() -> None:
    model, _ = measuring.sample()
    table = pl.DataFrame(measuring.capacity({"softmax": nz.get("softmax")}, model)).drop("normalizer")
    assert table.unique().height == len(measuring.REAL_LENGTHS)


def test_a_recall_run_without_the_normalizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no recall"):
        scorecard(["softmax"], out=tmp_path / "card", recall_run=tmp_path, progress=False)
    with pytest.raises(InputError, match="each once"):
        scorecard(["softmax", "softmax"], out=tmp_path / "card", progress=False)
