"""What shells say in other languages is read as they say it in English."""

from __future__ import annotations

import time

import pytest

from ddpdoctor.logs.parse.translations import LITERALS, in_english

pytestmark = pytest.mark.quick

RECORDED = {
    "run.sh: 第 1 行：26676 已杀死               python3 train.py": "run.sh: line 1: 26676 Killed                  python3 train.py",
    "run.sh: 第 1 行：26719 段错误               （核心已转储）python3 train.py": (
        "run.sh: line 1: 26719 Segmentation fault      (core dumped) python3 train.py"
    ),
    "run.sh: 1 行: 27431 強制終了            python3 train.py": "run.sh: line 1: 27431 Killed                  python3 train.py",
    "run.sh: 1 行: 27474 Segmentation fault      (コアダンプ) python3 train.py": (
        "run.sh: line 1: 27474 Segmentation fault      (コアダンプ) python3 train.py"
    ),
    "run.sh: Zeile 1: 28168 Getötet                python3 train.py": (
        "run.sh: line 1: 28168 Killed                  python3 train.py"
    ),
    "run.sh : ligne 1 : 28934 Erreur de segmentation  (core dumped)python3 train.py": (
        "run.sh: line 1: 28934 Segmentation fault      (core dumped) python3 train.py"
    ),
    "已终止": "Terminated",
    "段错误（核心已转储）": "Segmentation fault (core dumped)",
    "run.sh: 行 1: pythn: 未找到命令": "run.sh: line 1: pythn: command not found",
    "run.sh: ligne 1: pythn\N{NO-BREAK SPACE}: commande introuvable": "run.sh: line 1: pythn: command not found",
    "run.sh: 第 6 行：echo: 写入错误：设备上没有空间": "run.sh: line 6: echo: 写入错误: No space left on device",
    "cp: Fehler beim Schreiben von '/dev/full': Auf dem Gerät ist kein Speicherplatz mehr verfügbar": (
        "cp: Fehler beim Schreiben von '/dev/full': No space left on device"
    ),
    "timeout: シグナル TERM をコマンド `sleep' に送信しています": "timeout: sending signal TERM to command `sleep'",
    "timeout: envoi du signal KILL à la commande « sleep »": "timeout: sending signal KILL to command « sleep »",
}
"""Of bash 5.2, glibc 2.36 and coreutils 9.1, with their languages set."""


@pytest.mark.parametrize("said", RECORDED)
def test_recorded_words_are_read_in_english(said: str) -> None:
    assert any(literal in said for literal in LITERALS)
    assert in_english(said) == RECORDED[said]


@pytest.mark.parametrize(
    "said",
    [
        "提示：如果进程显示“已杀死”，说明内存不足",
        "已终止的任务: 3",
        "Die Übertragung wird Abgebrochen, wenn sie zu lange dauert",
        "run.sh: line 1: 26676 Killed                  python3 train.py",
        "step 3: loss 2.1",
    ],
)
def test_other_words_stay_as_they_are(said: str) -> None:
    assert in_english(said) == said


@pytest.mark.parametrize("piece", ["段错误", "run.sh: ", "：", "timeout: Signal ", " : ligne 1 : ", "1 "])
def test_long_lines_take_little_time(piece: str) -> None:
    began = time.process_time()
    in_english(piece * (2000 // len(piece)))
    assert time.process_time() - began < 0.5
