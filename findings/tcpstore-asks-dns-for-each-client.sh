#!/usr/bin/env bash
# torch's TCPStore asks the name server for the name of each client before it serves the next, although /etc/hosts has it.
#
# Package:   torch 2.13.0 (CPU); Linux with user namespaces, glibc
# Guess:     ranks that connect by address need no name server; and if they did, /etc/hosts would answer.
# Behaviour: the server's socket is of IPv6, so an IPv4 client is ::ffff:a.b.c.d there, which glibc does not find in
#            /etc/hosts. Its only thread asks for the name of each client, one after the other. A name server that needs
#            0.3 s (or is out of reach: 5 s and more) makes the last of n ranks wait n times that long.
# Seen 2026-11-30: 8 clients, a name server that needs 0.3 s: 8 questions by the server, the last client is served after 2.8 s;
#            the same with an IPv4 socket as master_listen_fd: 0 questions by the server, 0.3 s (clients ask in parallel).
# Matters:   compute nodes often have a slow name server or none: the start of a large job hangs there, and nothing says why.
set -euo pipefail
unshare --user --map-root-user --mount --net true || {
  echo "needs user namespaces, with which this machine's users may mount"
  exit 77
}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
cat >"$dir/clients.py" <<'PROGRAM'
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
import time

CLIENTS, DELAY_S, PORT = 8, 0.3, 29555
folder = os.path.dirname(os.path.abspath(__file__))
for name, text in {
    "resolv.conf": "nameserver 127.0.0.1\n",
    "nsswitch.conf": "hosts: files dns\n",
    "hosts": "127.0.0.1 localhost\n",
}.items():
    with open(f"{folder}/{name}", "w") as file:
        file.write(text)
    subprocess.run(["mount", "--bind", f"{folder}/{name}", f"/etc/{name}"], check=True)
with socket.socket() as probe:  # a network namespace of its own, whose loopback is down
    fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))

names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("127.0.0.1", 53))
asked = []


def answer(question, sender):
    time.sleep(DELAY_S)
    names.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], sender)  # no such name


def serve_names():
    while True:
        question, sender = names.recvfrom(1024)
        asked.append(question)
        threading.Thread(target=answer, args=(question, sender)).start()


threading.Thread(target=serve_names, daemon=True).start()
CLIENT = """
import sys, time, torch.distributed as dist
from datetime import timedelta
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
store = dist.TCPStore("127.0.0.1", {port}, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
store.set("mine" + sys.argv[1], "1")
print(time.monotonic() - began)
"""
SERVER = """
import socket, sys, torch.distributed as dist
from datetime import timedelta
more = {{}}
if sys.argv[1] == "ipv4":
    more["master_listen_fd"] = socket.create_server(("", {port})).detach()
store = dist.TCPStore("127.0.0.1", {port}, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False, **more)
print("serves", flush=True)
sys.stdin.readline()
"""


def start(program, word, port):
    words = [sys.executable, "-c", program.format(port=port), str(word)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)


def took_s(kind, port):
    server = start(SERVER, kind, port)
    assert server.stdout.readline() == "serves\n"
    clients = [start(CLIENT, number, port) for number in range(CLIENTS)]
    assert [client.stdout.readline() for client in clients] == ["ready\n"] * CLIENTS  # torch is in memory
    asked.clear()
    for client in clients:
        client.stdin.write("\n")
        client.stdin.flush()
    took = max(float(client.stdout.readline()) for client in clients)
    server.kill()
    by_server = len(asked) - CLIENTS  # each client asks once for the name of the server
    print(f"{kind}: {by_server} questions by the server; the last client was served after {took:.1f} s")
    return by_server, took


asked_by_default, default_s = took_s("default", PORT)
asked_by_ipv4, ipv4_s = took_s("ipv4", PORT + 1)
if asked_by_default < CLIENTS or default_s < CLIENTS * DELAY_S or asked_by_ipv4 or ipv4_s > CLIENTS * DELAY_S:
    print("the behaviour has changed", flush=True)
    os._exit(1)
os._exit(0)
PROGRAM
unshare --user --map-root-user --mount --net "$dir/venv/bin/python" "$dir/clients.py"
