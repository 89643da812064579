"""Sites, each a real Slurm with settings, partitions and accounts of its own, and the configs that are tried there.

No site has a partition without nodes: a job that waits in one ends the controller of 22.05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STORAGE = "AccountingStorageType=accounting_storage/slurmdbd"
LOW0 = "PartitionName=low0 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0"
PARTITIONS = """
PartitionName=narrow MaxNodes=2
PartitionName=wide MinNodes=2
PartitionName=thin MaxCPUsPerNode=4
PartitionName=lean MaxMemPerNode=8000
PartitionName=percpu MaxMemPerCPU=1000
PartitionName=fat DefMemPerNode=20000
PartitionName=pair Nodes=n[1-2]
PartitionName=broken Nodes=n5
PartitionName=half Nodes=n[4-5]
PartitionName=lab AllowGroups=lab
PartitionName=roots RootOnly=YES
PartitionName=held Nodes=n6
PartitionName=course Nodes=n6 ReqResv=YES
PartitionName=vips
PartitionName=novip
PartitionName=vision AllowAccounts=vision
PartitionName=notvision DenyAccounts=vision
PartitionName=down State=DOWN
PartitionName=drain State=DRAIN
PartitionName=closed State=INACTIVE
PartitionName=elsewhere AllocNodes=elsewhere
PartitionName=whole OverSubscribe=EXCLUSIVE
PartitionName=brief MaxTime=5 DefaultTime=2
"""
# Since 26.05, slurmctld does not start with a QOS that its database lacks: they come when the QOS is there.
QOS = {
    "PartitionName=vips": "PartitionName=vips AllowQos=vip",
    "PartitionName=novip": "PartitionName=novip DenyQos=vip",
}
BASE = {
    LOW0: LOW0 + PARTITIONS,
    "PartitionName=DEFAULT Nodes=ALL": "PartitionName=DEFAULT Nodes=n[1-4]",
    "GresTypes=gpu": "GresTypes=gpu\nLicenses=sim:2\nEnforcePartLimits=NO",
}
SACCTMGR = """\
add qos vip
add qos small set MaxWall=10 MaxTRESPerJob=node=2,cpu=8 Flags=DenyOnLimit
add qos waits set MaxWall=10 MaxTRESPerJob=node=2
add qos each set MaxTRESPerUser=cpu=4,gres/gpu=1
add qos group set GrpTRES=cpu=4
add qos least set MinTRESPerJob=node=2
add qos thin set MaxTRESPerNode=cpu=4
add qos none set MaxJobsPerUser=0
add qos full set MaxSubmitJobsPerUser=0
add qos minutes set MaxTRESMinsPerJob=cpu=5
add qos budget set GrpTRESMins=cpu=99
add qos long set Flags=PartitionTimeLimit
add qos closed
add account top GrpTRES=cpu=6
add account vision parent=top
add account nlp MaxWall=5
add account idle MaxJobs=0
add account grp GrpJobs=0
add account spent GrpTRESMins=cpu=0
add account lab
add user games account=vision qos=normal,vip,small,waits,each,group,least,thin defaultqos=normal
modify user games where account=vision set qos+=none,full,minutes,budget,long
add user games account=lab qos=normal
add user games account=nlp partition=low qos=normal MaxTRESPerJob=cpu=2
add user games account=idle
add user games account=grp
add user games account=spent
"""


@dataclass(frozen=True)
class Site:
    """`changes`: of slurm.conf. `accounts`: lines for sacctmgr."""

    changes: Mapping[str, str] = field(default_factory=dict)
    accounts: str = ""


WITHOUT = {
    STORAGE: "AccountingStorageType=accounting_storage/none",
    "AccountingStorageHost=": "#",
    "AccountingStoragePort=": "#",
    "AccountingStoragePass=": "#",
}
ENFORCED = "AccountingStorageEnforce=limits,qos\nAccountingStorageTRES=gres/gpu"
SITES = {
    "no accounting": Site(WITHOUT),
    "memory": Site({"SelectTypeParameters=CR_Core": "SelectTypeParameters=CR_Core_Memory"}),
    "limits": Site({STORAGE: f"{STORAGE}\n{ENFORCED}"}, SACCTMGR),
}
PART_LIMITS = ("NO", "ANY", "ALL")

COMMON: Sequence[Mapping[str, Any]] = (
    {},
    {"nodes": 4},
    {"nodes": 5},
    {"nodes": 2, "tasks_per_node": 4},
    {"cpus_per_task": 8},
    {"cpus_per_task": 9},
    {"tasks_per_node": 3, "cpus_per_task": 3},
    {"gpus_per_node": "2"},
    {"gpus_per_node": "3"},
    {"gpus_per_node": "a100:1"},
    {"gpus_per_task": "1", "tasks_per_node": 2},
    {"gres": "gpu:2"},
    {"gres": "shard:1"},
    {"mem": "12G"},
    {"mem": "20G"},
    {"mem": "0"},
    {"cpus_per_task": 8, "extra": {"mem-per-cpu": "3G"}},
    {"cpus_per_task": 2, "extra": {"mem-per-cpu": "3G"}},
    {"extra": {"mem-per-cpu": "20G"}},
    {"gpus_per_node": "2", "extra": {"mem-per-gpu": "9G"}},
    {"time": None},
    {"time": "UNLIMITED"},
    {"constraint": "h100"},
    {"constraint": "big"},
    {"constraint": "big&h100"},
    {"nodes": 2, "constraint": "big"},
    {"constraint": "big|h100"},
    {"constraint": "big", "exclude": "n3"},
    {"exclude": "n[1-4]"},
    {"exclude": "n[1-2]", "nodes": 3},
    {"exclude": "n9"},
    {"nodelist": "n4"},
    {"nodelist": "n5"},
    {"nodelist": "n9"},
    {"nodelist": "n[1-2]"},
    {"exclusive": True},
    {"exclusive": True, "cpus_per_task": 9},
    {"reservation": "nosuch"},
    {"reservation": "ours"},
    {"partition": "held", "reservation": "theirs"},
    {"partition": "held", "reservation": "ours"},
    {"partition": "held", "reservation": "later"},
    {"extra": {"licenses": "sim:1"}},
    {"extra": {"licenses": "sim:3"}},
    {"extra": {"licenses": "nosuch:1"}},
    {"extra": {"begin": "now+1year"}},
    {"extra": {"deadline": "now+10"}},
    {"extra": {"hold": True}},
    {"extra": {"tmp": "999G"}},
    {"extra": {"switches": 1}},
    {"extra": {"mincpus": 9}},
    {"extra": {"ntasks-per-core": 1}},
    {"extra": {"threads-per-core": 2}},
    {"extra": {"dependency": "afterok:999999"}},
    {"extra": {"core-spec": 2}},
    {"extra": {"use-min-nodes": True}},
    {"partition": "nosuch"},
    {"partition": "main,nosuch"},
    {"partition": "short", "time": 2},
    {"partition": "short", "time": 1},
    {"partition": "short,main", "time": 5},
    {"partition": "main,short", "time": 5},
    {"partition": "short,brief", "time": 30},
    {"partition": "brief", "time": None},
    {"partition": "narrow", "nodes": 3},
    {"partition": "narrow,main", "nodes": 3},
    {"partition": "narrow,pair", "nodes": 3},
    {"partition": "pair,main", "nodes": 3},
    {"partition": "wide"},
    {"partition": "wide", "nodes": 2},
    {"partition": "wide,main"},
    {"partition": "thin", "cpus_per_task": 5},
    {"partition": "thin", "cpus_per_task": 4},
    {"partition": "thin,main", "cpus_per_task": 5},
    {"partition": "lean", "mem": "10G"},
    {"partition": "lean,main", "mem": "10G"},
    {"partition": "lean", "mem": "7G"},
    {"partition": "lean", "cpus_per_task": 4, "extra": {"mem-per-cpu": "3G"}},
    {"partition": "percpu", "mem": "9000"},
    {"partition": "percpu", "mem": "6000"},
    {"partition": "percpu,main", "mem": "9000"},
    {"partition": "fat"},
    {"partition": "pair", "nodes": 3},
    {"partition": "pair", "nodelist": "n3"},
    {"partition": "pair,main", "nodelist": "n3"},
    {"partition": "broken"},
    {"partition": "broken,main"},
    {"partition": "broken", "gpus_per_node": "3"},
    {"partition": "half", "nodes": 2},
    {"partition": "half"},
    {"partition": "lab"},
    {"partition": "lab,main"},
    {"partition": "roots"},
    {"partition": "roots,main"},
    {"partition": "course"},
    {"partition": "course", "reservation": "ours"},
    {"partition": "vips"},
    {"partition": "vips,main"},
    {"partition": "vips", "qos": "vip"},
    {"partition": "novip", "qos": "vip"},
    {"partition": "vision"},
    {"partition": "vision,main"},
    {"partition": "vision", "account": "vision"},
    {"partition": "notvision"},
    {"partition": "notvision", "account": "vision"},
    {"partition": "notvision", "account": "lab"},
    {"qos": "nosuch"},
    {"account": "nosuch"},
    {"partition": "down"},
    {"partition": "down,main"},
    {"partition": "drain"},
    {"partition": "drain,main"},
    {"partition": "closed"},
    {"partition": "down", "cpus_per_task": 9},
    {"partition": "elsewhere"},
    {"partition": "whole"},
    {"partition": "whole", "nodes": 5},
    {"partition": "low,low0", "nodes": 4},
)  # fmt: skip
ACCOUNTED: Sequence[Mapping[str, Any]] = (
    {"qos": "small", "time": 5, "nodes": 2},
    {"qos": "small", "time": 20},
    {"qos": "small", "nodes": 3},
    {"qos": "waits", "nodes": 3},
    {"qos": "waits", "time": 20},
    {"qos": "each", "gpus_per_node": "2"},
    {"qos": "each", "gpus_per_node": "1"},
    {"qos": "each", "cpus_per_task": 5},
    {"qos": "group", "cpus_per_task": 5},
    {"qos": "group", "nodes": 4},
    {"qos": "least"},
    {"qos": "least", "nodes": 2},
    {"qos": "thin", "cpus_per_task": 5},
    {"qos": "thin", "nodes": 2, "cpus_per_task": 3},
    {"qos": "none"},
    {"qos": "full"},
    {"qos": "minutes", "time": 10},
    {"qos": "minutes", "time": 1},
    {"qos": "budget", "time": 100},
    {"qos": "closed"},
    {"qos": "long", "partition": "short", "time": 5},
    {"cpus_per_task": 7},
    {"account": "vision", "nodes": 2, "cpus_per_task": 3},
    {"account": "vision", "nodes": 2, "cpus_per_task": 4},
    {"account": "nlp", "partition": "low", "time": 8},
    {"account": "nlp", "partition": "low", "time": 4},
    {"account": "nlp", "partition": "low", "cpus_per_task": 3},
    {"account": "nlp"},
    {"account": "nlp", "partition": "low,main"},
    {"account": "lab"},
    {"account": "lab", "cpus_per_task": 8, "nodes": 4},
    {"account": "lab", "qos": "vip"},
    {"account": "idle"},
    {"account": "grp"},
    {"account": "spent"},
    {"account": "lab", "partition": "vision"},
    {"account": "lab", "partition": "vision,main"},
)  # fmt: skip
# Of the plain test cluster, for each run of the tests.
QUICK: Sequence[Mapping[str, Any]] = (
    {},
    {"nodes": 2, "gpus_per_node": "2"},
    {"nodes": 5},
    {"cpus_per_task": 9},
    {"mem": "20G"},
    {"cpus_per_task": 8, "extra": {"mem-per-cpu": "3G"}},
    {"partition": "short", "time": 2},
    {"partition": "main,short", "time": 2},
    {"constraint": "a|b"},
    {"extra": {"licenses": "nosuch:1"}},
    {"reservation": "nosuch"},
    {"nodelist": "n9"},
)
