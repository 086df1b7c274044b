"""How XLA compiles on a CPU: read when JAX wakes up, so this is imported before anything else."""

import os

# Threefry is a loop of five rounds. A loop whose arrays are smaller than this is one kernel, any other a kernel per
# operation and round: 256 random numbers take 3 us instead of 75. The numbers are the same.
SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"

if "xla_backend_extra_options" not in (flags := os.environ.get("XLA_FLAGS", "")):
    os.environ["XLA_FLAGS"] = f"{flags} {SMALL_LOOPS}".strip()
