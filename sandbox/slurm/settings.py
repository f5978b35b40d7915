"""The settings files of the sandbox's daemons, as text. Pure; every setting was tested on the sandbox.

Two settings differ from Slurm's defaults because of sessions: SlurmdTimeout (900 s, or an outage of munge ends
every job) and MinJobAge (300 s, so that the end of a job stays visible). The hub's own copy of slurm.conf has a
shorter MessageTimeout, because a command waits that long for a controller that does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.slurm.hardware import VirtualNode
from carme_hub.sandbox.slurm.ports import Ports

CLUSTER = "sandbox"
HUB_MESSAGE_TIMEOUT = 5

_SLURM = """\
# Written by `carme-hub sandbox up`; changes here are lost. GPUs named here are virtual GPUs.
ClusterName={cluster}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={slurm}
SlurmdUser={slurmd}
{root_jobs}{scratch}AuthType=auth/munge
AuthInfo=socket={munge}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={jwt}
CredType=cred/munge
StateSaveLocation={state}/state
SlurmdSpoolDir={state}/spool/%n
TmpFS={state}/tmp/%n
SlurmctldPidFile={state}/run/slurmctld.pid
SlurmdPidFile={state}/run/slurmd-%n.pid
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdLogFile={state}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
GresTypes=gpu,shard
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=900
MessageTimeout={message_timeout}
InactiveLimit=0
MinJobAge=300
KillWait=5
Waittime=0
DefMemPerCPU=512
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={munge}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AccountingStorageEnforce=associations,limits,qos,safe
AccountingStorageTRES={tres}
PrivateData=jobs,usage,users,accounts,reservations
PriorityType=priority/multifactor
PriorityDecayHalfLife=7-0
PriorityCalcPeriod=1
PriorityWeightAge=1000
PriorityWeightFairshare=100000
PriorityWeightQOS=10000
PreemptType=preempt/qos
PreemptMode=REQUEUE
PreemptExemptTime=0
JobRequeue=1
JobSubmitPlugins=lua
Licenses={licenses}
{nodes}
PartitionName=interactive Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=batch Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
"""

_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=32 Boards=1 SocketsPerBoard=2 "
    "CoresPerSocket=16 ThreadsPerCore=1 RealMemory=64000 Gres={gres} State=UNKNOWN"
)

_DBD = """\
AuthType=auth/munge
AuthInfo=socket={munge}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={jwt}
DbdAddr=127.0.0.1
DbdHost=localhost
DbdPort={dbd}
SlurmUser={slurm}
DebugLevel=info
LogFile={state}/log/slurmdbd.log
PidFile={state}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={secret}
StorageLoc=slurm_acct
CommitDelay=1
PrivateData=jobs,usage,users,accounts,reservations
CommunicationParameters=NoInAddrAny
"""

_DATABASE = """\
[mariadbd]
datadir={folder}
socket={folder}/mysqld.sock
pid-file={folder}/mysqld.pid
tmpdir={folder}-tmp
init-file={folder}-init.sql
bind-address=127.0.0.1
port={database}
skip-name-resolve
max-connections=40
innodb-log-file-size=16M
innodb-buffer-pool-size=64M
innodb-flush-log-at-trx-commit=2
innodb-lock-wait-timeout=900
loose-innodb-snapshot-isolation=OFF
"""

_DATABASE_INIT = """\
CREATE DATABASE IF NOT EXISTS slurm_acct;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{secret}';
GRANT ALL ON slurm_acct.* TO 'slurm'@'127.0.0.1';
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in the files.

    Attributes:
        slurm: the user of slurmctld and slurmdbd. slurmd: the user of slurmd, root where jobs run as many users.
        secret: password of the accounting database.
    """

    layout: Layout
    ports: Ports
    nodes: Sequence[VirtualNode]
    slurm: str
    slurmd: str
    secret: str

    def slurm_conf(self, *, message_timeout: int = 10) -> str:
        """Return slurm.conf."""
        kinds = {kind for node in self.nodes for kind, _ in node.gpus}
        tres = ["gres/gpu", *(f"gres/gpu:{kind}" for kind in sorted(kinds | {"a100"})), "gres/shard"]
        counts = Counter[str]()
        for node in self.nodes:
            counts.update(dict(node.gpus))
        licenses = [f"gpu_{kind}:{count}" for kind, count in sorted(counts.items())]
        nodes = [_NODE.format(name=n.name, port=self.ports.node(n), gres=n.gres) for n in self.nodes]
        return _SLURM.format(
            cluster=CLUSTER,
            controller=self.ports.controller,
            dbd=self.ports.dbd,
            slurm=self.slurm,
            slurmd=self.slurmd,
            root_jobs="DisableRootJobs=YES\n" if self.slurmd == "root" else "",
            scratch=self._scratch() if self.slurmd == "root" else "",
            munge=self.layout.munge_socket,
            jwt=self.layout.jwt_key,
            state=self.layout.state,
            message_timeout=message_timeout,
            tres=",".join(tres),
            licenses=",".join(licenses),
            nodes="\n".join(nodes),
        )

    def _scratch(self) -> str:
        """Return the lines for scratch folders; without root there are none."""
        folder = self.layout.node_programs
        return f"Prolog={folder}/carme-stage-prolog\nEpilog={folder}/carme-stage-epilog\n"

    def gres_conf(self) -> str:
        """Return gres.conf: the device files of the virtual GPUs."""
        lines = ["# Virtual GPUs: device files that no driver answers for.", "AutoDetect=off"]
        for node in self.nodes:
            for kind, first, last in node.devices():
                files = f"{self.layout.dev}/{node.name}/nvidia[{first}-{last}]"
                lines.append(f"NodeName={node.name} Name=gpu Type={kind} File={files}")
            if node.shards:
                lines.append(f"NodeName={node.name} Name=shard Count={node.shards}")
        return "\n".join(lines) + "\n"

    def slurmdbd_conf(self) -> str:
        """Return slurmdbd.conf. It contains a password: mode 0600."""
        return _DBD.format(
            munge=self.layout.munge_socket,
            jwt=self.layout.jwt_key,
            dbd=self.ports.dbd,
            database=self.ports.database,
            slurm=self.slurm,
            state=self.layout.state,
            secret=self.secret,
        )

    def database_conf(self) -> str:
        """Return MariaDB's settings."""
        return _DATABASE.format(folder=self.layout.database, database=self.ports.database)

    def database_init(self) -> str:
        """Return the SQL that MariaDB executes at every start. It contains a password: mode 0600."""
        return _DATABASE_INIT.format(secret=self.secret)
