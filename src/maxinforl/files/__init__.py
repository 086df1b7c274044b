"""Files that survive a crash and are checked before they are used.

Nothing here runs code from a file, follows a symbolic link inside a run, or allocates what a header merely claims.

    problems   one sentence for whatever goes wrong
    atomic     names inside a run, whole files, logs
    tables     JSON and TOML
    arrays     safetensors with a checksum, .npz
"""

# ruff: noqa: F401

from maxinforl.files import atomic
from maxinforl.files.arrays import Arrays, GiB, load_arrays, npz_shapes, read_npz, save_arrays
from maxinforl.files.atomic import (
    TEMPORARY,
    LogChecksum,
    MiB,
    append_line,
    clear_temporary,
    filter_lines,
    inside,
    is_temporary,
    log_checksum,
    make_directory,
    opened,
    remove,
    sync,
    sync_directory,
    temporary_name,
    write_atomic,
)
from maxinforl.files.problems import (
    FileProblem,
    NestedTooDeep,
    PathLike,
    check_format,
    os_error_message,
    os_error_reason,
    printable,
    reading,
    running,
    writing,
)
from maxinforl.files.tables import (
    dump_json,
    parse_toml,
    read_json,
    read_sealed_json,
    read_toml,
    regular_file,
    write_json,
    write_sealed_json,
    write_toml,
)

KiB = 1 << 10
