from __future__ import annotations

from softleak.core import environment


def test_the_code_is_known_by_its_source_files(tmp_path, monkeypatch):
    (tmp_path / "part").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "core" / "environment.py"))

    def code(**sources: str) -> str:
        for name, source in sources.items():
            (tmp_path / "part" / f"{name}.py").write_text(source)
        environment.code_digest.cache_clear()
        return environment.code()

    first = code(a="x = 1", b="")
    (tmp_path / "part" / "notes.txt").write_text("no code")
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert code() == first
    assert len({first, code(a="x = 2"), code(b="x = 1"), code(c="")}) == 4
    environment.code_digest.cache_clear()
