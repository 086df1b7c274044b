"""TensorBoard and W&B get the metric names of metrics.jsonl; nothing is sent anywhere."""

import time

import pytest

from maxinforl.training.log import TensorBoard, WeightsAndBiases

LINES = [(100, {"rollout/ep_rew_mean": -5.0, "explore/alpha2": 0.5}), (200, {"explore/alpha2": 0.25})]


def test_tensorboard_holds_every_metric_at_its_step(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    from tensorboardX.proto.event_pb2 import Event

    sink = TensorBoard(tmp_path)
    for step, line in LINES:
        sink.write(step, line)
    sink.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    data, events = path.read_bytes(), []
    while data:  # records: length, checksum of it, bytes, checksum
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    found = {(v.tag, e.step): v.simple_value for e in events for v in e.summary.value}
    assert found == {(name, step): value for step, line in LINES for name, value in line.items()}


@pytest.mark.slow
def test_wandb_writes_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"MODE": "offline", "SILENT": "true", "CONFIG_DIR": str(tmp_path / "config")}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for name in ("CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "home"))
    sink = WeightsAndBiases(tmp_path, {"algo": "sac"})
    for step, line in LINES:
        sink.write(step, line)
    assert sink.run.settings.mode == "offline" and dict(sink.run.config) == {"algo": "sac"}
    sink.close()
    names, deadline = [name.encode() for name in LINES[0][1]], time.monotonic() + 60
    (record,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    while not all(name in record.read_bytes() for name in names) and time.monotonic() < deadline:
        time.sleep(0.1)  # a process of its own writes it, and may still be at it
    assert all(name in record.read_bytes() for name in names)
    assert wandb.run is None
