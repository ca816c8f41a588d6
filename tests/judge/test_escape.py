"""What a hostile program tries against those outside its sandbox: each is refused, by the system's means where it has
them. Programs here know nothing of the audit hook, which only watches Python."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from convt3d.judge.sandbox import Ended, Limits, Sandbox, judging

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
FAST = Limits(seconds=5, start_seconds=60, memory=2**30)
NAMESPACES = ("namespaces", "hidden processes", "read-only files")


def run(code: str, limits: Limits = FAST, **options) -> tuple[int, str]:
    with Sandbox([sys.executable, "-I", "-S", "-c", code], limits, **options) as box:
        return box.run(), box.text


# --- system calls -----------------------------------------------------------------------------------------------------

# name -> what must raise OSError, or return -1 from C. JUDGE is this process, FILE is one of ours outside the folder.
ATTEMPTS = {
    "kill the judge": "os.kill(JUDGE, 0)",
    "kill the guard": "os.kill(os.getppid(), 9)",
    "kill everybody": "os.kill(-1, 0)",
    "kill the process group": "os.killpg(JUDGE, 0)",
    "tgkill": "c(libc.tgkill(JUDGE, JUDGE, 0))",
    "sigqueue": "c(libc.sigqueue(JUDGE, 0, None))",
    "pidfd_open": "os.pidfd_open(JUDGE)",
    "continue itself": "os.kill(os.getpid(), signal.SIGCONT)",
    "F_SETOWN": "fcntl.fcntl(PIPE, 8, JUDGE)",
    "F_SETSIG": "fcntl.fcntl(PIPE, 10, 9)",
    "F_SETOWN_EX": "fcntl.fcntl(PIPE, 15, struct.pack('ii', 1, JUDGE))",
    "O_ASYNC": "fcntl.fcntl(PIPE, 4, 0o20000)",
    "FIOASYNC": "fcntl.ioctl(PIPE, 0x5452, struct.pack('i', 1))",
    "FIOSETOWN": "fcntl.ioctl(PIPE, 0x8901, struct.pack('i', JUDGE))",
    "dnotify": "fcntl.fcntl(os.open('.', os.O_RDONLY), 1026, 0x80000004)",
    "prlimit": "resource.prlimit(JUDGE, resource.RLIMIT_NOFILE, (3, 3))",
    "sched_setaffinity": "os.sched_setaffinity(JUDGE, {0})",
    "setpriority": "os.setpriority(os.PRIO_PROCESS, JUDGE, 19)",
    "setpriority of the user": "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "nice": "os.nice(1)",
    "sched_setscheduler": "os.sched_setscheduler(JUDGE, os.SCHED_BATCH, os.sched_param(0))",
    "timer_create": "c(libc.timer_create(1, None, ctypes.byref(ctypes.c_long())))",
    "mq_open": "c(libc.mq_open(b'/q', 0o102, 0o600, None))",
    "PR_SET_PDEATHSIG": "c(libc.prctl(1, 18, 0, 0, 0))",
    "PR_SET_DUMPABLE": "c(libc.prctl(4, 0, 0, 0, 0))",
    "fork": "os.fork() or os._exit(0)",
    "vfork": "c(libc.syscall(58 if X86 else 9999))",
    "clone a process": "c(libc.syscall(56 if X86 else 220, 17, 0, 0, 0, 0)) or os._exit(0)",
    "execve": "os.execv('/bin/true', ['true'])",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "ptrace": "c(libc.ptrace(16, JUDGE, None, None))",
    "process_vm_readv": "c(libc.process_vm_readv(JUDGE, None, 0, None, 0, 0))",
    "memory of the judge": "open(f'/proc/{JUDGE}/mem', 'rb')",
    "memory of the guard": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "unshare": "c(libc.unshare(0x10000000))",
    "mount": "c(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))",
    "truncate": "os.truncate(FILE, 0)",
    "open with O_TRUNC": "os.open(FILE, os.O_RDONLY | os.O_TRUNC)",
    "write": "os.open(FILE, os.O_WRONLY)",
    "chmod": "os.chmod(FILE, 0o777)",
    "fchmod": "os.fchmod(os.open(FILE, os.O_RDONLY), 0o777)",
    "chown": "os.chown(FILE, os.getuid(), os.getgid())",
    "utime": "os.utime(FILE, (1, 1))",
    "futime": "os.utime(os.open(FILE, os.O_RDONLY), (1, 1))",
    "setxattr": "os.setxattr(FILE, 'user.a', b'b')",
    "removexattr": "os.removexattr(FILE, 'user.a')",
    "unlink": "os.unlink(FILE)",
    "rename": "os.rename(FILE, FILE + 'x')",
    "link": "os.link(FILE, 'linked')",
    "symlink": "os.symlink(os.path.dirname(FILE), 'inside')",
    "memfd_create": "os.memfd_create('m')",
    "shmget": "c(libc.shmget(0, 4096, 0o1600))",
    "semget": "c(libc.semget(0, 1, 0o1600))",
    "msgget": "c(libc.msgget(0, 0o1600))",
    "shm_open": "c(libc.shm_open(b'/convt3d-escape', 0o102, 0o600))",
    "loopback": "socket.socket(socket.AF_INET)",
    "unix socket": "socket.socket(socket.AF_UNIX)",
    "netlink": "socket.socket(socket.AF_NETLINK)",
    "io_uring": "c(libc.syscall(425, 1, ctypes.create_string_buffer(256)))",
    "userfaultfd": "c(libc.syscall(323 if X86 else 282, 0))",
    "perf_event_open": "c(libc.syscall(298 if X86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0))",
    "bpf": "c(libc.syscall(321 if X86 else 280, 0, None, 0))",
    "keyctl": "c(libc.syscall(250 if X86 else 219, 0, -3, 0))",
}
FRAME = """
import ctypes, fcntl, os, resource, signal, socket, struct
libc, X86 = ctypes.CDLL(None, use_errno=True), os.uname().machine == 'x86_64'
PIPE = os.pipe()[0]
def c(result):
    if result == -1: raise OSError(ctypes.get_errno(), 'refused')
for name, attempt in ATTEMPTS.items():
    try:
        exec(attempt)
        print('done:', name)
    except (OSError, AttributeError) as error:
        pass
print('the end')
"""
OUTSIDE = ["truncate", "open with O_TRUNC", "write", "chmod", "fchmod", "utime", "futime", "unlink", "rename"]


def frame(target: Path, *names: str) -> str:
    chosen = {name: ATTEMPTS[name] for name in names or ATTEMPTS}
    values = {"JUDGE": os.getpid(), "FILE": str(target), "ATTEMPTS": chosen}
    return "".join(f"{name} = {value!r}\n" for name, value in values.items()) + FRAME


@pytest.fixture
def target(tmp_path: Path):
    """A file of ours; afterwards it is what it was, and so are we."""
    path = tmp_path / "ours"
    path.write_text("ours")
    path.chmod(0o640)
    before = path.stat()
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    yield path
    after = path.stat()
    assert path.read_text() == "ours"
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert (cores, nice) == (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0))


def test_every_attempt_is_refused(need, target: Path) -> None:
    need("seccomp", "Landlock")
    assert run(frame(target)) == (0, "the end")


def test_every_attempt_is_refused_without_namespaces(need, without, target: Path) -> None:
    need("seccomp", "Landlock")
    without("namespaces")
    assert run(frame(target)) == (0, "the end")


def test_landlock_alone_keeps_files_from_being_cut_off(need, without, target: Path) -> None:
    need("Landlock")
    without("seccomp", "namespaces")
    code, text = run(frame(target, "write", "truncate", "open with O_TRUNC", "unlink", "rename", "link"))
    if "truncate" in text:
        pytest.skip("a Landlock older than Linux 6.2")
    assert (code, text) == (0, "the end")


def test_namespaces_alone_keep_files_and_processes(need, without, target: Path) -> None:
    need(*NAMESPACES)
    without("seccomp", "Landlock")
    names = [*OUTSIDE, "kill the judge", "setpriority", "sched_setaffinity", "prlimit", "memory of the judge"]
    assert run(frame(target, *names)) == (0, "the end")


def test_no_devices_but_those_that_everyone_has(need, without) -> None:
    """Also for the owner of them all, where nothing else stands in the way."""
    need(*NAMESPACES)
    without("seccomp", "Landlock")
    code = (
        "import os, stat\nopened = []\nfor folder, _, names in os.walk('/dev'):\n    for name in names:\n"
        "        path = os.path.join(folder, name)\n        try:\n"
        "            if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFBLK, stat.S_IFCHR):\n"
        "                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))\n                opened.append(path)\n"
        "        except OSError: pass\nopen('/dev/null', 'w').write('x')\nprint(*sorted(opened))"
    )
    opened = set(run(code)[1].split())
    assert {"/dev/null"} <= opened <= {f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero")}


def test_the_memory_of_the_judge_is_nobodys_to_read(without, target: Path) -> None:
    without("namespaces", "Landlock")
    with judging():
        assert run(frame(target, "memory of the judge", "memory of the guard")) == (0, "the end")


def test_the_command_line_of_the_judge_is_not_to_be_found(need) -> None:
    need("hidden processes")
    assert run("import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))")[1] == "[1, 2]"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls of other architectures are x86's")
@pytest.mark.parametrize(
    "call",
    [
        # mov eax, 37 (kill); mov ebx, esi; xor ecx, ecx; int 0x80; ret
        "run(bytes.fromhex('b82500000089f331c9cd80c3'))",
        # mov eax, 11 (execve); int 0x80; ret
        "run(bytes.fromhex('b80b000000cd80c3'))",
        "libc.syscall(0x40000000 + 39)",
        "libc.syscall(0x40000000 + 520)",
    ],
)
def test_calls_of_another_architecture_end_the_program(need, call: str) -> None:
    need("seccomp")
    code = (
        "import ctypes, mmap\nlibc = ctypes.CDLL(None)\ndef run(code):\n"
        "    page = mmap.mmap(-1, 4096, prot=7)\n    page.write(code)\n"
        "    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
        f"{call}\nprint('went on')"
    )
    with pytest.raises(Ended) as ended:
        run(code)
    assert ended.value.words() == "it was ended by SIGSYS"


# --- limits -----------------------------------------------------------------------------------------------------------

MANY_THREADS = "import threading, time\nfor _ in range(200): threading.Thread(target=time.sleep, args=(60,)).start()"
MANY_FILES = "for n in range(40): open(f'f{n}', 'wb').write(bytes(2**20))\nimport time; time.sleep(60)"
REMOVED = "import os, time\nf = [open(f'f{n}', 'wb') for n in range(40)]\n"
REMOVED += "for n, file in enumerate(f): os.unlink(f'f{n}'); file.write(bytes(2**20)); file.flush()\ntime.sleep(60)"
# A path of more than the 4,096 characters that Linux takes.
DEEP = "import os, time\nfor _ in range(1200): os.mkdir('deep'); os.chdir('deep')\ntime.sleep(60)"


def test_threads_are_limited() -> None:
    with pytest.raises(Ended) as ended:
        run(MANY_THREADS, Limits(start_seconds=60, threads=100))
    assert ended.value.words() == "it used more than 100 threads"


@pytest.mark.parametrize("code", [MANY_FILES, REMOVED])
def test_files_are_limited_together(without, code: str) -> None:
    without("namespaces")
    with pytest.raises(Ended) as ended:
        run(code, Limits(start_seconds=60, file_bytes=2**24))
    assert ended.value.words() == "it used more than 16 MiB in files"


def test_files_are_limited_by_a_small_folder_of_its_own(need) -> None:
    need("read-only files")
    assert "No space left on device" in run(MANY_FILES, Limits(start_seconds=60, file_bytes=2**24))[1]


def test_folders_too_deep_to_be_counted(without) -> None:
    without("namespaces")
    with Sandbox([sys.executable, "-I", "-S", "-c", DEEP], FAST) as box, pytest.raises(Ended) as ended:
        box.run()
    assert "a folder that cannot be looked into" in ended.value.words()
    assert not os.path.exists(box.folder)
