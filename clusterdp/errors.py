"""The errors of clusterdp, as a tree of classes. The command line catches the base class in one place, and prints the
error as one line.

    ClusterdpError            exit 1
    ├── ConfigError           exit 2   a mistake in the YAML, an override or an argument
    │   └── EntryError        exit 2   the program cannot be run at all: `entry:` does not import, ...
    ├── SubmitError           exit 3   the job could not be submitted (no sbatch, or sbatch refused)
    │   └── SubmitInDoubt     exit 3   sbatch gave no clear answer: the job may exist
    ├── SlurmError            exit 3   another Slurm command failed, or is missing
    ├── RunError              exit 4   no such run, or the run does not allow this now
    ├── CheckpointError       exit 5
    │   ├── DamagedError      exit 5   bytes on disk are not the bytes that were written
    │   ├── ClaimLost         exit 5   another attempt owns the run folder now (checkpoint/errors.py)
    │   ├── LostContact       exit 5   a rank died or hung during an agreement (checkpoint/errors.py)
    │   └── StateError        exit 5   the state does not fit the checkpoint, or cannot be saved
    │       └── ReplicasDiffer exit 5  tensors differ between ranks (checkpoint/errors.py)
    ├── RendezvousError       exit 6   the ranks did not find each other
    ├── FakeError             exit 7   the fake cluster failed
    ├── OutputError           exit 1   the output cannot be written: a full disk
    ├── RemoteError           exit 9   a cluster behind ssh cannot run the verb: no clusterdp there, another version
    │   └── Unreachable       exit 9   no connection to it; a kept answer may have been shown
    └── TrainError            exit 8   the training cannot continue: ranks with different models, a loss that is NaN

A message has the form `<key or object>: <mistake, with the value>. <remedy>.`
"""

from __future__ import annotations


class ClusterdpError(Exception):
    exit_code = 1


class ConfigError(ClusterdpError):
    exit_code = 2


class EntryError(ConfigError):
    pass


class SubmitError(ClusterdpError):
    exit_code = 3


class SubmitInDoubt(SubmitError):
    pass


class SlurmError(ClusterdpError):
    exit_code = 3


class RunError(ClusterdpError):
    exit_code = 4


class CheckpointError(ClusterdpError):
    exit_code = 5


class DamagedError(CheckpointError):
    pass


class StateError(CheckpointError):
    pass


class RendezvousError(ClusterdpError):
    exit_code = 6


class FakeError(ClusterdpError):
    exit_code = 7


class OutputError(ClusterdpError):
    pass


class TrainError(ClusterdpError):
    exit_code = 8


class RemoteError(ClusterdpError):
    exit_code = 9


class Unreachable(RemoteError):
    pass
