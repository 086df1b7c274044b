"""Malformed invocations: exit code 2, one sentence, nothing written, within five seconds."""

import time
from pathlib import Path

import pytest

from maxinforl import cli

DEEP = "[" * 3000 + "]" * 3000
PENDULUM = ["--env", "Pendulum-v1"]
SUITE = 'algorithms = ["sac"]\nenvironments = ["Pendulum-v1"]\nseeds = 2\n'

TRAIN = [
    # names
    (["--algo", ""], "--algo is empty"),
    (["--algo", "\x1b[31msac"], "unknown algorithm"),
    (["--algo", "sac" * 1000], "unknown algorithm"),
    (["--base", "sacc"], "did you mean 'sac'"),
    (["--base", "sac", "--explore", "maxinfo", "--intrinsic", "nothing"], "unknown intrinsic reward"),
    (["--base", "sac", "--explore", "everything"], "unknown exploration strategy"),
    (["--preset", ""], "--preset is empty"),
    (["--uncertainty", ""], "uncertainty"),
    (["--loop", "fast"], "--loop"),
    (["--on-nan", ""], "--on-nan"),
    # environments
    (["--env", ""], "--env is empty"),
    (["--env", ":"], "environment"),
    (["--env", "::"], "environment"),
    (["--env", "no_such_module:Thing-v0"], "no_such_module"),
    (["--env", "os:system"], "environment"),
    (["--env", "../x"], "environment"),
    (["--env", "/"], "environment"),
    (["--env", "-"], "environment"),
    (["--env", "Pendulum-v"], "environment"),
    (["--env", "Pendulum-v99999999999999999999"], "environment"),
    (["--env", "Pendulum-v1 "], "environment"),
    (["--env", "Pendulum\x1b[2J-v1"], "environment"),
    (["--env", "Pendulum\n-v1"], "environment"),
    (["--env", "pixels/"], "environment"),
    (["--env", "pixels/pixels/Pendulum-v1"], "environment"),
    (["--env", "pixels/Pendulum-v1"], "pixels.md"),
    (["--env", "dmc/"], "unknown"),
    (["--env", "dmc/walker"], "unknown"),
    (["--env", "dmc/walker-fly"], "unknown"),
    (["--env", "jax/"], "unknown"),
    (["--env", "jax/pendulum-hangin"], "did you mean"),
    (["--env", "h1-fly"], "unknown environment"),
    (["--env", "CartPole-v1"], "continuous actions"),
    (["--env", "FrozenLake-v1"], "continuous actions"),
    (["--env", "jax/pendulum-hanging", "--env-arg", "g=3"], "unknown argument"),
    ([*PENDULUM, "--env-arg", "g=abc"], "environment argument"),
    ([*PENDULUM, "--env-arg", "g=[1,2]"], "environment argument"),
    ([*PENDULUM, "--env-arg", "g=true"], "environment argument"),
    ([*PENDULUM, "--env-arg", "g=inf"], "g"),
    ([*PENDULUM, "--env-arg", "g=nan"], "g"),
    ([*PENDULUM, "--env-arg", "g=-inf"], "g"),
    ([*PENDULUM, "--env-arg", "g={x=1}"], "must be a number"),
    ([*PENDULUM, "--env-arg", "g=[[1]]"], "takes a float for the environment argument g"),
    ([*PENDULUM, "--env-arg", f"g={10**40}"], "environment argument"),
    ([*PENDULUM, "--env-arg", "=3"], "NAME=VALUE"),
    ([*PENDULUM, "--env-arg", "g"], "NAME=VALUE"),
    ([*PENDULUM, "--env-arg", f"g={DEEP}"], "nested too deep"),
    (["--env", "MountainCarContinuous-v0", "--env-arg", "goal_velocity=fast"], "environment argument"),
    (["--env", "MountainCarContinuous-v0", "--env-arg", "colour=3"], "colour"),
    # counts
    *(
        (["--steps", n], "--steps")
        for n in ("", "x", "1.5", "1e3", "0", "-1", "2147483648", "9" * 40, "inf", "nan", "0x10")
    ),
    *((["--num-envs", n], "--num-envs") for n in ("0", "-3", "1.0", "16385", "10000000", "9" * 30)),
    *((["--batch-size", n], "--batch-size") for n in ("0", "-1", "1000000000000", "x")),
    *((["--eval-episodes", n], "--eval-episodes") for n in ("-1", "1001", "1000000000", "x")),
    *((["--eval-limit", n], "--eval-limit") for n in ("0", "-1", "2147483648")),
    *((["--action-repeat", n], "--action-repeat") for n in ("0", "-1", "1001", "1000000000000")),
    *(
        (["--update-ratio", n], "--update-ratio")
        for n in ("0", "-1", "nan", "inf", "-inf", "0.5", "1e-300", "1e9", "1e308")
    ),
    *((["--capacity", n], "--capacity") for n in ("0", "1", "-5", "10000000000000")),
    *((["--learning-starts", n], "--learning-starts") for n in ("-1", "x", "9999999999")),
    *((["--keep", n], "--keep") for n in ("0", "-1", "100000000")),
    *(([f"--{name}-every", "0"], f"--{name}-every") for name in ("log", "save", "eval")),
    *((["--max-faults", n], "--max-faults") for n in ("-1", "x", "9999999999")),
    *((["--env-timeout", n], "--env-timeout") for n in ("0", "-1", "nan", "inf", "1e300", "x")),
    *((["--max-hours", n], "--max-hours") for n in ("0", "-1", "nan", "inf")),
    *((["--stop-at", n], "--stop-at") for n in ("nan", "inf", "x")),
    *((["--action-cost", n], "--action-cost") for n in ("-1", "nan", "inf")),
    *((["--image-size", n], "--image-size") for n in ("0", "2049")),
    *((["--frame-stack", n], "--frame-stack") for n in ("0", "65")),
    *((["--seed", n], "--seed") for n in ("-1", "4294967296", "x")),
    *(
        (["--seeds", s], "--seeds")
        for s in ("", ",", "-", "0,0", "0-1,1", "4-0", "0-9999999999", "a-b", "1-2-3", "1.5", "-1")
    ),
    (["--batch-size", "1000000", "--update-ratio", "100"], "lower --update-ratio"),
    # entries of the agent
    *(
        (["--set", f"base.lr={v}"], "base.lr")
        for v in ("inf", "nan", "-inf", "0", "-1", "fast", "true", "[1]", "{x=1}", "")
    ),
    *(
        (["--set", f"base.hidden={v}"], "base.hidden")
        for v in ("8", "[0]", "[-1]", "[1.5]", "x", "[[8]]", "[100000]", "true")
    ),
    (["--set", f"base.hidden={[8] * 4000}"], "at most 32"),
    *((["--set", f"base.critics={v}"], "critics") for v in ("0", "-1", "1.5", "100000", "9" * 30)),
    *((["--set", f"base.nstep={v}"], "base.nstep") for v in ("0", "1000000000")),
    *((["--set", f"intrinsic.members={v}"], "members") for v in ("0", "1", "1000000")),
    (["--set", "intrinsic.init_name=anything"], "unknown initialiser"),
    (["--set", "intrinsic.activation=anything"], "unknown activation"),
    (["--set", 'base={kind="InfoGain"}'], "base must be ActorCritic"),
    (["--set", 'base={kind="os.system"}'], "unknown kind"),
    (["--set", "base={}"], "unknown kind"),
    (["--set", "base=3"], "base must be"),
    (["--set", 'base.encoder={kind="Tuned"}'], "encoder"),
    (["--set", "base.encoder=3"], "encoder"),
    (["--set", 'intrinsic={kind="Curiosity"}'], "intrinsic must be"),
    (["--set", 'weight={kind="Fixed", number=-1.0}'], "weight"),
    (["--set", f"base={DEEP}"], "nested too deep"),
    (["--set", "base." * 2000 + "lr=1"], "unknown setting"),
    (["--set", "base.lr.x=1"], "single value"),
    (["--set", ".=1"], "unknown setting"),
    (["--set", "=1"], "NAME=VALUE"),
    (["--set", "base.lr"], "NAME=VALUE"),
    (["--set", "base.gamma=2"], "gamma"),
    (["--set", "base.tau=0"], "tau"),
    (["--set", "base.num_min_critics=3"], "critics"),
    (["--algo", "sac", "--set", "intrinsic.lr=1e-3"], "intrinsic"),
    # flags
    (["--model-share", "3"], "from 0 to below 1"),
    (["--stpes", "5"], "did you mean '--steps'"),
    (["--steps"], "expected one argument"),
    (["stray"], "stray"),
    (["--config", ""], "--config"),
    (["--config", "."], "--config"),
    (["--config", "/dev/null/x"], "--config"),
    (["--config", "bad.toml"], "not valid TOML"),
    (["--config", "wrong.toml"], "unknown setting"),
    (["--config", "kinds.toml"], "steps must be"),
    (["--config", "table.toml"], "env must be"),
    (["--config", "settings.toml"], "not a table"),
    (["--out", "bad.toml"], "is a file"),
    (["--out", "full"], "holds no run"),
    (["--out", "bad.toml/x"], "lies below a file"),
    (["--out", "n" * 300], "too long"),
]
OTHER = [
    (["train", "--resume", "--out", "full"], "holds no run"),
    (["resume"], "required"),
    (["resume", "nowhere"], "holds no run"),
    (["resume", "full"], "holds no run"),
    (["resume", "bad.toml"], "holds no run"),
    (["resume", "full", "--steps", "x"], "--steps"),
    (["eval", "nowhere"], "not a directory"),
    (["eval", "full"], "neither a run"),
    (["eval", "full", "--episodes", "0"], "--episodes"),
    (["eval", "full", "--episodes", "1000000000"], "--episodes"),
    (["eval", "full", "--episodes", "x"], "--episodes"),
    (["export", "nowhere"], "not a directory"),
    (["export", "full", "--to", "tflite"], "neither a run"),
    (["inspect", "nowhere"], "nowhere"),
    (["inspect", "full"], "config.toml"),
    (["report", "nowhere"], "nowhere"),
    (["report", "full"], "no runs to report"),
    (["report", "full", "--threshold", "x"], "x"),
    (["sweep"], "required"),
    (["sweep", "nowhere.toml"], "nowhere.toml"),
    (["sweep", "full"], "full"),
    (["sweep", "bad.toml"], "not valid TOML"),
    (["sweep", "wrong.toml"], "unknown key"),
    (["sweep", "nested.toml", "--dry-run"], "must be a number"),
    (["sweep", "suite.toml", "--jobs", "-1"], "--jobs"),
    (["sweep", "suite.toml", "--jobs", "x"], "--jobs"),
    (["sweep", "suite.toml", "--launcher", "cloud"], "unknown launcher"),
    (["sweep", "suite.toml", "--address", "here"], "--launcher ray"),
    (["sweep", "suite.toml", "--reuse", "nowhere"], "--reuse"),
    (["sweep", "suite.toml", "--algos", "ppo"], "unknown algorithm"),
    (["sweep", "suite.toml", "--envs", "Hopper-v4"], "unknown environment"),
    (["sweep", "suite.toml", "--seeds", "0-99999999999"], "--seeds"),
    (["sweep", "suite.toml", "--set", "stepz=3"], "did you mean 'steps'"),
    (["sweep", "suite.toml", "--set", "steps=x"], "steps"),
    (["sweep", "suite.toml", "--set", "base.lr=inf"], "base.lr"),
    (["sweep", "suite.toml", "--set", "num_envs=1000000"], "--num-envs"),
    (["reproduce", "fig999", "--out", "x"], "unknown figure"),
    (["reproduce", "fig1"], "required"),
    (["reproduce", "fig999", "--out", "x", "--scale", "x"], "--scale"),
    (["bench"], "required"),
    (["bench", "memory"], "memory"),
    (["bench", "speed", "--algos", "ppo"], "unknown algorithm"),
    (["bench", "speed", "--batch-size", "0"], "--batch-size"),
    (["completion"], "required"),
    (["completion", "tcsh"], "tcsh"),
    (["list", "--everything"], "unknown flag"),
    (["trian"], "did you mean 'train'"),
    (["--stepz"], "unknown flag"),
    ([""], "unknown command"),
]
INVOCATIONS = [*((["train", *flags], words) for flags, words in TRAIN), *OTHER]
FILES = {
    "bad.toml": "steps = = 3",
    "wrong.toml": "stepz = 3",
    "kinds.toml": "steps = [3]",
    "table.toml": "[env]\nx = 1",
    "settings.toml": "settings = 3",
    "suite.toml": SUITE,
    "nested.toml": SUITE + "[settings]\nenv_arg = {g = {x = 1}}\n",
    "full/notes.txt": "mine",
}


def test_there_are_many():
    assert len(INVOCATIONS) >= 120


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("place")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


def names(text: str) -> str:
    return repr(text)[1:60]


@pytest.mark.parametrize(("words", "says"), INVOCATIONS, ids=[names(" ".join(w)) for w, _ in INVOCATIONS])
@pytest.mark.filterwarnings("ignore")
def test_a_malformed_invocation_is_one_sentence(place, monkeypatch, capsys, words, says):
    monkeypatch.chdir(place)
    for begins in ("terminal.open_run", "terminal.carry_on", "experiments.sweep.Sweep.go", "experiments.speed.command"):
        monkeypatch.setattr(f"maxinforl.{begins}", lambda *_, **__: pytest.fail("it was begun"))
    before, began = sorted(place.rglob("*")), time.process_time()
    try:
        code = cli.main(words)
    except SystemExit as left:
        code = left.code
    took, said = time.process_time() - began, capsys.readouterr()
    assert code == 2, said
    assert said.err.startswith("maxinforl: ") and said.err.count("\n") == 1 and said.out == "", said
    assert says in said.err and "\x1b" not in said.err and len(said.err) < 1000, said.err
    assert sorted(place.rglob("*")) == before and took < 5
