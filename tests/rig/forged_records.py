"""Records in the real slurmdbd's database as a stepped clock or a lost message would leave them."""

from __future__ import annotations

import subprocess

from carme_hub.sandbox import Cluster


class ForgedRecords:
    """Changes the records of ``sacct`` directly in the database; forged job ids begin at ``FIRST``."""

    FIRST = 900_000

    def __init__(self, cluster: Cluster) -> None:
        self._socket = cluster.layout.database / "mysqld.sock"
        self._table = self._query("show tables like '%_job_table'").split()[0]

    def longer(self, job: int, seconds: int) -> None:
        """Set a later end of a job."""
        self._query(f"update {self._table} set time_end = time_end + {seconds:d} where id_job = {job:d}")

    def copy(self, job: int, number: int, seconds: int) -> int:
        """Write a copy of this job's record with another length in seconds, which may be negative."""
        forged = self.FIRST + number
        self._query(
            f"create temporary table forged select * from {self._table} where id_job = {job:d};"
            f"update forged set job_db_inx = 0, id_job = {forged:d}, time_end = time_start + {seconds:d};"
            f"insert into {self._table} select * from forged"
        )
        return forged

    def forget(self) -> None:
        """Delete the forged jobs."""
        self._query(f"delete from {self._table} where id_job >= {self.FIRST:d}")

    def _query(self, statement: str) -> str:
        argv = ["mariadb", "--no-defaults", f"--socket={self._socket}", "--skip-column-names", "slurm_acct"]
        done = subprocess.run(argv, input=statement, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
