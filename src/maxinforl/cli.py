"""The `maxinforl` command: flags come from the Settings dataclass, errors are one sentence."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from maxinforl.cli_docs import add_examples
from maxinforl.errors import BadInput, RunFailed, one_line, plain, unknown

DONE, BAD_INPUT, RUN_FAILED, PREEMPTED = 0, 2, 3, 75
TRAINING = ("train", "resume")
MOST_SEEDS = 10_000


class Parser(argparse.ArgumentParser):
    words: Sequence[str] = ()  # what is being parsed

    def error(self, message: str) -> NoReturn:
        """One sentence and exit code 2, with the nearest flag where one was misspelt."""
        if message.startswith("unrecognized arguments: "):
            wrong = message.split(": ")[1].split()[0]
            near = get_close_matches(wrong.split("=")[0], self.flags(), n=1, cutoff=0.7)
            message = f"unknown flag '{wrong}'" + (f": did you mean '{near[0]}'?" if near else "")
        if match := re.match(r"argument COMMAND: invalid choice: '(.*?)'", message):
            raise unknown("command", match[1], COMMANDS)
        if match := re.match(r"argument ([^:]*): (.*)", message, re.DOTALL):
            message = match[2] if match[1].split("/")[0] in match[2] else f"{match[1]}: {match[2]}"
        raise BadInput(message)

    def flags(self) -> list[str]:
        """Every flag of this parser, and of the command that is being parsed."""
        commands = {
            k: p for a in self._actions if isinstance(a, argparse._SubParsersAction) for k, p in a.choices.items()
        }
        named = next((commands[word] for word in self.words if word in commands), None)
        return [*self._option_string_actions, *(named._option_string_actions if named else ())]


def number(text: str) -> Any:
    """A value of K=V as TOML would read it, else the text itself."""
    from maxinforl.files import FileProblem, NestedTooDeep, parse_toml

    try:
        table = parse_toml(f"x = {text}".encode(errors="replace"))
        return table["x"] if len(table) == 1 else text
    except NestedTooDeep as problem:
        raise argparse.ArgumentTypeError(f"'{text[:40]}...' {problem}") from None
    except FileProblem:
        return text


def pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form NAME=VALUE")
    parsed = number(value)
    return name, tuple(parsed) if isinstance(parsed, list) else parsed


def typed(name: str, kind: Callable[[str], Any], described: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text.replace("_", "") if kind is int else text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"--{name.replace('_', '-')} must be {described}, not '{text}'") from None

    return read


def add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of Settings."""
    from maxinforl.settings import PAIRS, Settings, flag

    for f in fields(Settings):
        text = f.metadata["help"].replace("%", "%%")
        options: dict[str, Any] = {"dest": f.name, "default": None, "help": text}
        if f.name in PAIRS:
            options |= {"action": "append", "type": pair, "metavar": "K=V"}
        elif f.type == "bool":
            options |= {"action": "store_true"}
        elif "str" in str(f.type) and "float" in str(f.type):
            options |= {"type": number, "metavar": f.name.upper()}
        elif "int" in str(f.type):
            options |= {"type": typed(f.name, int, "a whole number"), "metavar": "N"}
        elif "float" in str(f.type):
            options |= {"type": typed(f.name, float, "a number"), "metavar": "X"}
        else:
            options |= {"metavar": f.name.upper()}
        parser.add_argument(flag(f.name), **options)


def add_env(parser: argparse.ArgumentParser) -> None:
    """The environment of what is loaded, which a file alone may not have imported."""
    parser.add_argument("--env", help="the run's own environment, where its name is MODULE:NAME", metavar="NAME")


def seed_range(text: str) -> list[int]:
    """'0-4', '0,2,5' or '3'."""
    try:
        spans = [tuple(map(int, part.split("-"))) for part in text.split(",")]
        if any(len(span) > 2 for span in spans):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"--seeds must be a range such as 0-4 or a list such as 0,2,5, not '{text}'"
        ) from None
    if any(span[0] > span[-1] for span in spans):
        raise argparse.ArgumentTypeError(f"--seeds {text} names no seed: write the smaller number first")
    if sum(span[-1] + 1 - span[0] for span in spans) > MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"--seeds {text} names more than {MOST_SEEDS} seeds: name fewer")
    seeds = [seed for span in spans for seed in range(span[0], span[-1] + 1)]
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"--seeds {text} names a seed twice: leave one out")
    return seeds


def add_suite_options(parser: argparse.ArgumentParser) -> None:
    """What `sweep` and `reproduce` share: where runs happen, and which part of a suite they are."""
    whole = typed("jobs", int, "a whole number")
    parser.add_argument("--launcher", default="local", help="local, ray or slurm (default: local)", metavar="NAME")
    parser.add_argument("--address", help="Ray cluster to use (default: one started here)", metavar="ADDRESS")
    parser.add_argument(
        "--jobs", type=whole, help="runs at a time (default: by the cores); 0 runs nothing", metavar="N"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the runs, hours and memory, and run nothing")
    parser.add_argument(
        "--reuse", action="append", metavar="DIR",
        help="take finished runs from here (default: nowhere; for reproduce ./results where it is)",
    )  # fmt: skip
    parser.add_argument("--algos", type=names, default=[], help="only these, by name or pattern, with commas")
    parser.add_argument("--envs", type=names, default=[], help="only these, by name or pattern, with commas")
    parser.add_argument("--seeds", type=seed_range, help="these seeds instead, such as 0-4", metavar="SEEDS")
    parser.add_argument(
        "--set", action="append", type=pair, default=[], metavar="K=V", help="a setting, or an entry of the agent"
    )


def names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def parser() -> Parser:
    root = Parser(prog="maxinforl", description="Reinforcement learning that explores by information gain.")
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers(dest="command", parser_class=Parser, metavar="COMMAND")

    train = commands.add_parser("train", help="train an agent")
    add_settings(train)
    train.add_argument(
        "--seeds", type=seed_range, help="several seeds, such as 0-4, each in DIR/seed-N", metavar="SEEDS"
    )
    train.add_argument("--out", help="run directory (default: a new numbered one under runs/)", metavar="DIR")
    train.add_argument("--config", help="TOML file of settings; flags win over it", metavar="FILE")
    train.add_argument("--overwrite", action="store_true", help="replace the run that --out holds")
    train.add_argument("--resume", action="store_true", help="continue the run that --out holds, if it holds one")

    resume = commands.add_parser("resume", help="continue a run where it stopped")
    resume.add_argument("directory", metavar="DIR", help="directory of a run, or of several seeds")
    resume.add_argument("--override", action="store_true", help="let the settings given here replace the run's own")
    add_settings(resume)

    evaluate = commands.add_parser("eval", help="evaluate a trained agent")
    evaluate.add_argument("directory", metavar="DIR", help="directory of a run, or what Agent.save wrote")
    evaluate.add_argument(
        "--episodes", type=typed("episodes", int, "a whole number"), default=10, metavar="N", help="episodes to play"
    )
    evaluate.add_argument(
        "--save-episodes", help="write the episodes to this .npz file, for --prior-data", metavar="FILE"
    )
    add_env(evaluate)

    listing = commands.add_parser("list", help="list algorithms, environments or presets")
    listing.add_argument("--envs", action="store_true", help="the environments this library names")
    listing.add_argument("--figures", action="store_true", help="the figures that `reproduce` makes")
    listing.add_argument("--preset", action="store_true", help="the presets and what they change")

    doctor = commands.add_parser("doctor", help="check this machine and say what to fix")
    add_settings(doctor)
    add_experiments(commands)
    add_tools(commands)
    add_examples(root)
    return root


def add_experiments(commands: Any) -> None:
    """Commands about many runs."""
    report = commands.add_parser("report", help="one self-contained HTML page about runs")
    report.add_argument("directories", nargs="+", metavar="DIR", help="runs, or directories that hold them")
    report.add_argument("--out", default="report.html", help="the page to write (default: report.html)", metavar="FILE")
    report.add_argument(
        "--threshold", type=float, metavar="RETURN", help="count steps to this return (default: halfway)"
    )
    report.add_argument(
        "--reference", nargs="?", const="public", metavar="FILE.csv",
        help="public curves beside the runs, from a file (without a name: from those that are shipped)",
    )  # fmt: skip
    report.add_argument("--png", action="store_true", help="also the figures as PNG, in figures/ beside the page")
    report.add_argument("--pdf", action="store_true", help="also the figures as PDF, in figures/ beside the page")

    sweep = commands.add_parser("sweep", help="run a suite: algorithms × environments × seeds")
    sweep.add_argument("suite", metavar="SUITE.toml", help="file of algorithms, environments, seeds and settings")
    sweep.add_argument("--out", help="where the runs go (default: runs/ and the suite's name)", metavar="DIR")
    add_suite_options(sweep)

    reproduce = commands.add_parser("reproduce", help="reproduce a figure of the paper and judge its claims")
    reproduce.add_argument("figure", metavar="FIGURE", help="a name from `maxinforl list --figures`")
    reproduce.add_argument("--out", required=True, help="directory for data, figure and verdicts", metavar="DIR")
    reproduce.add_argument(
        "--scale", type=typed("scale", float, "a number"), default=1.0, metavar="S", help="part of the paper's budget"
    )
    add_suite_options(reproduce)

    bench = commands.add_parser("bench", help="time updates and agent steps against their matrix products")
    bench.add_argument("what", choices=("speed",), metavar="speed", help="what to time")
    bench.add_argument("--algos", nargs="+", default=["sac", "maxinfo-sac"], help="names, or all", metavar="NAMES")
    bench.add_argument("--uncertainty", help="ensemble: paper or light (default: the preset's)", metavar="KIND")
    whole = lambda name: typed(name, int, "a whole number")
    bench.add_argument(
        "--batch-size", type=whole("batch-size"), default=256, metavar="N", help="transitions per update"
    )
    bench.add_argument("--image-size", type=whole("image-size"), default=84, metavar="N", help="side of images")
    bench.add_argument("--no-start", action="store_true", help="do not time how long a fresh process takes to begin")
    bench.add_argument("--json", help="write the numbers to a file too", metavar="FILE")


def add_tools(commands: Any) -> None:
    """Commands about runs that exist."""
    export = commands.add_parser("export", help="write a trained policy that acts without JAX")
    export.add_argument("directory", metavar="DIR", help="run directory, or what Agent.save wrote")
    export.add_argument(
        "--to", default="numpy", help="numpy (a runner that needs only NumPy; default) or onnx", metavar="FORMAT"
    )
    export.add_argument("--out", help="directory for the bundle (default: DIR-numpy or DIR-onnx)", metavar="BUNDLE")
    add_env(export)

    inspect = commands.add_parser("inspect", help="explain a run: curve, exploration, calibration, advice")
    inspect.add_argument("directory", metavar="DIR", help="directory of one run, with or without checkpoints")

    completion = commands.add_parser("completion", help="print a script that completes commands in a shell")
    completion.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0 done, 2 bad input, 3 run failed, 75 preempted."""
    command = None
    try:
        import jax  # noqa: F401
    except Exception as error:
        return without_jax(error, sys.argv[1:] if argv is None else argv)
    try:
        root = parser()
        root.words = sys.argv[1:] if argv is None else argv
        args = root.parse_args(argv)
        if args.version:
            import maxinforl

            print(maxinforl.__version__)
            return DONE
        if (command := args.command) is None:
            root.print_help()
            return DONE
        with interruptible() if command in TRAINING else nullcontext():
            return COMMANDS[command](args)
    except BadInput as error:
        print(f"maxinforl: {error.message()}", file=sys.stderr)
        return BAD_INPUT
    except RunFailed as error:
        print(f"maxinforl: {error.message()}", file=sys.stderr)
        return RUN_FAILED
    except KeyboardInterrupt:
        if command not in TRAINING:
            raise
        print("maxinforl: interrupted while no training was under way: start or resume it later", file=sys.stderr)
        return PREEMPTED
    except BrokenPipeError:
        return DONE
    except OSError as error:
        from maxinforl.files import os_error_message

        print(f"maxinforl: {os_error_message(error)}", file=sys.stderr)
        return BAD_INPUT


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, while training has not begun to listen to either."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not the main thread: nothing can be caught here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def prepare_jax() -> None:
    """A compilation cache on disk, and no GPU memory taken in advance."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "maxinforl" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    from maxinforl.settings import PAIRS, Settings

    given = {f.name: getattr(args, f.name) for f in fields(Settings)}
    return {k: tuple(v) if k in PAIRS else v for k, v in given.items() if v is not None and v is not False}


def settings_from(args: argparse.Namespace) -> Any:
    from maxinforl import files
    from maxinforl.envs import check_name
    from maxinforl.settings import read_settings

    table = {}
    if args.config is not None:
        if not Path(args.config).is_file():
            raise BadInput(f"--config {args.config} is not a file")
        table = files.read_toml(args.config)
    base = read_settings(table.get("settings", table))
    if "settings" in table:  # it is the configuration of a run
        check_name(base.env, args.env)
    given = given_settings(args)
    if "algo" in given:
        base = (
            replace(base, base=None, explore=None, intrinsic=None)
            if not {"base", "explore", "intrinsic"} & set(given)
            else base
        )
    elif {"base", "explore", "intrinsic"} & set(given):
        base = replace(base, algo=None)
    return replace(base, **given)


def train(args: argparse.Namespace) -> int:
    prepare_jax()
    from maxinforl import terminal
    from maxinforl.experiments.suite_runs import check_same
    from maxinforl.training.directory import check_free, complete_seeds, holds_run, next_directory

    settings = settings_from(args)
    out = (Path(args.out) if args.out else next_directory()).absolute()  # an environment may change the current one
    seeds = args.seeds or [settings.seed]
    runs = [(replace(settings, seed=s), out if args.seeds is None else out / f"seed-{s}") for s in seeds]
    if args.resume and holds_run(out):
        complete_seeds(out)
        check_same(runs)
        return terminal.resume(out, {"env": settings.env}, override=False)
    check_free(out, args.overwrite)
    return terminal.train(runs, out, overwrite=args.overwrite)


def resume(args: argparse.Namespace) -> int:
    prepare_jax()
    from maxinforl import terminal

    return terminal.resume(Path(args.directory).absolute(), given_settings(args), args.override)


def evaluate(args: argparse.Namespace) -> int:
    prepare_jax()
    from maxinforl import terminal
    from maxinforl.settings import MOST_EPISODES, check_count

    check_count("--episodes", args.episodes, 1, MOST_EPISODES)
    return terminal.evaluate(Path(args.directory), args.episodes, args.env, args.save_episodes)


def listing(args: argparse.Namespace) -> int:
    from maxinforl import listing

    if args.figures:
        listing.show_figures()
        return DONE
    listing.show_envs() if args.envs else listing.show_presets() if args.preset else listing.show_algorithms()
    return DONE


def bench(args: argparse.Namespace) -> int:
    prepare_jax()
    from rich.console import Console

    from maxinforl.algorithms import CATALOGUE, algorithm
    from maxinforl.experiments import speed
    from maxinforl.settings import Settings

    asked = [name for part in args.algos for name in names(part)]
    chosen = list(CATALOGUE) if asked == ["all"] else asked
    pixels = {name: algorithm(name).base.encoder.pixels for name in chosen}
    env = {False: "Pendulum-v1", True: "pixels/pendulum-hanging"}
    given = {"uncertainty": args.uncertainty, "batch_size": args.batch_size, "image_size": args.image_size}
    subjects = [Settings(algo=name, env=env[pixels[name]], **given) for name in chosen]
    speed.command(subjects, Path(args.json) if args.json else None, not args.no_start, Console(width=160))
    return DONE


def without_jax(error: Exception, argv: Sequence[str]) -> int:
    """Nothing but the doctor works where JAX does not import."""
    if [*argv[:1]] == ["doctor"]:
        from rich.console import Console

        from maxinforl import doctor

        return doctor.main(Console())
    print(f"maxinforl: JAX does not import ({one_line(error)}): `maxinforl doctor` says what to do", file=sys.stderr)
    return BAD_INPUT


def doctor(args: argparse.Namespace) -> int:
    from rich.console import Console

    from maxinforl import doctor
    from maxinforl.terminal import replay_of

    given = given_settings(args)
    return doctor.main(Console(), lambda: replay_of(given) if given else 0)


def report(args: argparse.Namespace) -> int:
    from rich.console import Console

    from maxinforl.experiments.report import export_figures, report

    page = report(args.directories, args.out, args.threshold, Console(), args.reference)
    formats = [name for name in ("png", "pdf") if getattr(args, name)]
    folder = page.parent / "figures"
    figures = [p for name in formats for p in export_figures(args.directories, folder, name, args.reference)]
    for path in [page, *figures]:
        print(f"wrote {path}")
    return DONE


def sweep(args: argparse.Namespace) -> int:
    from maxinforl.experiments import sweep
    from maxinforl.experiments.suite_file import read_suite

    suite = sweep.select(read_suite(args.suite), args)
    return sweep.run(suite, Path(args.out or Path("runs") / Path(args.suite).stem), sweep.LaunchOptions.of(args))


def reproduce(args: argparse.Namespace) -> int:
    from maxinforl.experiments import reproduce

    return reproduce.main(args.figure, Path(args.out), args.scale, args)


def export(args: argparse.Namespace) -> int:
    prepare_jax()
    from maxinforl import deploy
    from maxinforl.terminal import loaded

    out = args.out or f"{Path(args.directory)}-{args.to}"
    took = deploy.export(loaded(Path(args.directory), args.env), args.to, out)
    print(f"wrote {out}: one action takes {took.median:.3f} ms (median), {took.p99:.3f} ms (99th percentile)")
    return DONE


def inspect(args: argparse.Namespace) -> int:
    prepare_jax()
    from maxinforl.experiments.inspection import inspect

    print(plain(inspect(Path(args.directory)), keep="\n"))
    return DONE


def completion(args: argparse.Namespace) -> int:
    from maxinforl.cli_docs import completion

    print(completion(args.shell, parser()), end="")
    return DONE


COMMANDS = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "list": listing,
    "sweep": sweep,
    "report": report,
    "reproduce": reproduce,
    "doctor": doctor,
    "export": export,
    "inspect": inspect,
    "completion": completion,
    "bench": bench,
}

if __name__ == "__main__":
    sys.exit(main())
