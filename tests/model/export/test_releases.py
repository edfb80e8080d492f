"""Every family of docs/encoders.md: the artifact gives what sentence-transformers gives.

Of BERT and its kin every attention is fused, with positions that are numbered from the padding's
id and with token types or none; `packed/` has the tests of the others.

With TEST_SAVED_MODELS, a folder that `tests.support.saved_models` wrote under another release of
transformers, its models are exported too, and compared with what that release gives.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.few import FEW
from tests.support.saved_models import FAMILIES, TEXTS, VECTORS, save_model

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
ELSEWHERE = os.environ.get("TEST_SAVED_MODELS", "")
KIN_OF_BERT = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")
SAVED = ("here", "elsewhere") if ELSEWHERE else ("here",)


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_vectors_of_the_library_that_saved_it(
    family: str, saved: str, tmp_path: Path
) -> None:
    here = saved == "here"
    folder = save_model(tmp_path / family, family) if here else Path(ELSEWHERE, family)
    exported = export_checkpoint(folder, tmp_path / "artifact", FEW)
    if family in KIN_OF_BERT:
        assert exported.manifest.fused["Attention"] == 2
    assert ("token_type_ids" in exported.manifest.inputs) == (family in ("bert", "electra"))
    served = OnnxEncoder(exported)
    expected = np.load(folder / VECTORS)
    assert (served.encode(TEXTS) * expected).sum(1).min() >= 0.9999
