"""A Python whose processes are forked from a server that has torch: a program, `-m MODULE` or `-c CODE`, with -u or
without, whose signals and end are those of this process. Any other call is one of the real Python. forking_python()
writes the first line and the two names."""

import array
import json
import os
import signal
import socket
import struct
import sys

PYTHON, SERVER = "@PYTHON@", "@SERVER@"
FORKED = ("clusterdp.train.worker", "clusterdp.recipes.digits", "torch.distributed.run")  # those that load torch

words = sys.argv[2:] if sys.argv[1:2] == ["-u"] else sys.argv[1:]
if not words or (words[0][0] == "-" and words[0] != "-c" and words[:1] + words[1:2] not in [["-m", x] for x in FORKED]):
    os.execv(PYTHON, [PYTHON, *sys.argv[1:]])
numbers = [int(each) for each in os.listdir("/dev/fd")]
inherited = [each for each in numbers if os.path.exists(f"/dev/fd/{each}") and os.get_inheritable(each)]
server = socket.socket(socket.AF_UNIX)
server.connect(SERVER)
mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, lambda got, frame: server.sendall(bytes([got])))
asked = {"words": words, "environ": dict(os.environ), "folder": os.getcwd(), "python": __file__, "files": inherited}
asked.update(mask=[int(each) for each in mask], umask=os.umask(0))
asked["unbuffered"] = words != sys.argv[1:] or "PYTHONUNBUFFERED" in os.environ
text = json.dumps(asked).encode()
message = struct.pack(">I", len(text)) + text
sent = server.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", inherited))])
server.sendall(message[sent:])
for number in inherited:
    if number > 2:
        os.close(number)
signal.pthread_sigmask(signal.SIG_UNBLOCK, mask)
code = struct.unpack(">i", server.recv(4))[0]
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
