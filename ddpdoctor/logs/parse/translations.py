"""What shells and the C library say of ends and errors in other languages, and the same in English, as everything else here reads it."""

from __future__ import annotations

import re
from typing import Final

_SIGNALS: Final = {
    "Hangup": ("挂起", "挂断", "停止", "Aufgelegt", "Fin de la connexion (raccroché)"),
    "Quit": ("退出", "終了", "Verlassen", "Quitter"),
    "Illegal instruction": ("非法指令", "不正な指定", "Ungültiger Maschinenbefehl", "Instruction non permise"),
    "Trace/breakpoint trap": ("追踪与中断点陷阱", "Trace/Breakpoint ausgelöst", "Trappe pour point d'arrêt et de trace"),
    "Aborted": ("已放弃", "已中止", "中止", "Abgebrochen", "Abandon"),
    "Bus error": ("总线错误", "バスエラー", "Bus-Zugriffsfehler", "Bus-Fehler", "Erreur du bus", "Erreur de bus"),
    "Floating point exception": (
        "浮点数例外", "浮点异常", "浮動小数点例外", "Gleitkomma-Ausnahme", "Gleitkommafehler", "Exception en point flottant",
        "Exception en virgule flottante",
    ),
    "Killed": ("已杀死", "強制終了", "Getötet", "Gewaltsam beendet", "Abgebrochen (Killed)", "Processus arrêté", "Tué"),
    "Segmentation fault": (
        "段错误", "セグメンテーションフォルト", "セグメンテーション違反です", "Speicherzugriffsfehler", "Adressierungsfehler",
        "Erreur de segmentation",
    ),
    "Terminated": ("已终止", "Beendet", "Abgebrochen (Terminated)", "Complété", "Terminé"),
}  # fmt: skip
_ERRORS: Final = {
    "command not found": ("未找到命令", "コマンドが見つかりません", "Kommando nicht gefunden", "commande introuvable"),
    "No such file or directory": (
        "没有那个文件或目录", "そのようなファイルやディレクトリはありません", "Datei oder Verzeichnis nicht gefunden",
        "Aucun fichier ou dossier de ce type",
    ),
    "Permission denied": ("权限不够", "許可がありません", "Keine Berechtigung", "Permission non accordée"),
    "No space left on device": (
        "设备上没有空间", "デバイスに空き領域がありません", "Auf dem Gerät ist kein Speicherplatz mehr verfügbar",
        "Aucun espace disponible sur le périphérique",
    ),
    "Cannot allocate memory": (
        "无法分配内存", "メモリを確保できません", "Nicht genügend Hauptspeicher verfügbar", "Ne peut allouer de la mémoire",
    ),
    "Too many open files": ("打开的文件过多", "ファイルを開きすぎです", "Zu viele offene Dateien", "Trop de fichiers ouverts"),
    "Disk quota exceeded": (
        "超出磁盘限额", "ディスク使用量制限を超過しました", "Der zugewiesene Plattenplatz (Quota) ist überschritten",
        "Débordement du quota d'espace disque",
    ),
}  # fmt: skip
_TIMEOUTS: Final = (
    "正在发送信号 {} 至命令 {}", "シグナル {} をコマンド {} に送信しています", "Signal {} wird an Befehl {} geschickt",
    "envoi du signal {} à la commande {}",
)  # fmt: skip
_DUMPED: Final = (
    "（核心已转储）", "（吐核）", "(核心已转储)", "(吐核)", "(コアダンプ)", "(Speicherabzug geschrieben)", "(core dumped)",
)  # fmt: skip
_TOO_COMMON: Final = ("Hangup", "Quit")
"""Their words stand in any text: alone they say nothing."""
_ENGLISH: Final = {word: english for table in (_SIGNALS, _ERRORS) for english, words in table.items() for word in words}
_BEFORE_COMMAND: Final = "timeout: {}"
_LINES: Final = (" 行：", " 行: ", ": Zeile ", " : ligne ")
"""Of a script, where a shell is in it."""
LITERALS: Final = (
    *(word for word, english in _ENGLISH.items() if english not in _TOO_COMMON),
    *(word for word in _DUMPED if not word.isascii() or "Speicher" in word),
    *_LINES,
    *(_BEFORE_COMMAND.format(words.partition("{}")[0]) for words in _TIMEOUTS),
)
"""What a line in one of these languages is found by."""


def _any(words: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


_SIGNAL: Final = rf"(?P<signal>{_any(tuple(word for words in _SIGNALS.values() for word in words))})"
_CORE: Final = rf"(?P<dumped>{_any(_DUMPED)})"
_LINE: Final = re.compile(r"(?P<script>\S+?)\s?: (?:第 ?|行 ?|Zeile |ligne )?(?P<number>\d{1,9})(?: ?行)?\s?[:：] ?")
"""Where a shell is in a script, and the script's name: in front of the number or behind it stands the word for a line."""
_PROCESS: Final = re.compile(rf"\s*(?P<pid>\d{{1,9}}) {_SIGNAL}\s*(?:{_CORE}\s*)?(?=\S)")
_ALONE: Final = re.compile(rf"{_SIGNAL}\s*(?:{_CORE}\s*)?$")
_ERROR: Final = re.compile(
    rf"\s?[:：] ?(?P<error>{_any(tuple(word for words in _ERRORS.values() for word in words))})\.?\s*$"
)
_TIMEOUT: Final = re.compile(
    "|".join(
        re.escape(_BEFORE_COMMAND.format(words)).replace(r"\{\}", r"(\w+)", 1).replace(r"\{\}", r"(.+)")
        for words in _TIMEOUTS
    )
)


def in_english(text: str) -> str:
    """Return a line with what a shell, or the C library, says in it of a process's end or of an error in English; any other line as it is."""
    if found := _TIMEOUT.match(text):
        signal, command = (word for word in found.groups() if word)
        return f"timeout: sending signal {signal} to command {command}"
    if found := _LINE.match(text):
        rest = text[found.end() :]
        if process := _PROCESS.match(rest):
            dumped = "(core dumped) " if process["dumped"] else ""
            rest = f"{process['pid']} {_ENGLISH[process['signal']]:<23} {dumped}{rest[process.end() :]}"
        text = f"{found['script']}: line {found['number']}: {rest}"
    elif found := _ALONE.match(text):
        return f"{_ENGLISH[found['signal']]}{' (core dumped)' if found['dumped'] else ''}"
    if found := _ERROR.search(text):
        text = f"{text[: found.start()]}: {_ENGLISH[found['error']]}"
    return text
