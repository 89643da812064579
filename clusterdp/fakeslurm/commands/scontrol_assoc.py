"""scontrol show assoc_mgr: the one user, with an account of the same name, and no limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

NOTHING = ",".join(f"{name}=N(0)" for name in "cpu mem energy node billing fs/disk vmem pages".split())
LIMITS = f"""    SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00
    UsageRaw/Norm/Efctv=0.00/1.00/0.00
    ParentAccount= Lft={{left}} DefAssoc={{default}}
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES={NOTHING}
    GrpTRESMins={NOTHING}
    GrpTRESRunMins={NOTHING}
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=
    MaxTRESPN=
    MaxTRESMinsPJ=
    MinPrioThresh="""


def associations(daemon: Daemon) -> str:
    user, cluster = daemon.controller.user, daemon.shape.name
    whole = f"ClusterName={cluster} Account={user.name} UserName="
    return f"""Current Association Manager state

User Records

UserName={user.name}({user.uid}) DefAccount={user.name} DefWckey= AdminLevel=Administrator

Association Records

{whole} Partition= Priority=0 ID=1
{LIMITS.format(left=1, default="No")}
{whole}{user.name}({user.uid}) Partition= Priority=0 ID=2
{LIMITS.format(left=2, default="Yes")}

QOS Records

QOS=normal(1)"""
