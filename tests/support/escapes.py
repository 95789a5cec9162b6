"""More than thirty names that would lead out of a folder, were they taken for paths."""

MARK = "chaoskit-escape"

ESCAPES = [
    *("..", ".", "/", "//", "../", "/..", "~", "~root", "-", ""),
    *(f"../{MARK}", f"../../{MARK}", f"a/../../{MARK}", f"./../{MARK}", f"/tmp/{MARK}", f"//tmp/{MARK}", f"~/{MARK}"),
    *(f"..\\{MARK}", f"..%2f{MARK}", f"..\u2215{MARK}", f"..\uff0f{MARK}", f"\uff0e\uff0e/{MARK}", f"..\0/{MARK}", f"a\0/../../{MARK}"),
    *(
        f"..\n/{MARK}",
        f" ../{MARK}",
        f"file:///tmp/{MARK}",
        f"$HOME/{MARK}",
        f"{{run}}/../{MARK}",
        f"*/../../{MARK}",
        f"/proc/self/cwd/{MARK}",
    ),
    "../" * 40 + f"tmp/{MARK}",
]
