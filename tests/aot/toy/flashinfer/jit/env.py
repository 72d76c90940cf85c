from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
FLASHINFER_GEN_SRC_DIR = Path("unset")
FLASHINFER_JIT_DIR = Path("unset")
