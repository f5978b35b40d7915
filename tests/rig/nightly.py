"""What `make test` leaves to `make nightly`.

Tests that are named here, or marked ``nightly``, run with ``CARME_NIGHTLY=1`` only: long repeats, every earlier
release, and what a change in one folder alone can break (a container runtime, a way to submit, the sandbox), where
one of its kind runs in `make test`. On PostgreSQL, tests of the store and of several processes at once run in
`make test`; the others prove there what they prove on SQLite. Hypothesis looks at its usual number of examples by
night, and at a fifth of them in `make test`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

NIGHTLY = os.environ.get("CARME_NIGHTLY") == "1"
#: Tests run on a Slurm that was built, in place of the one that Debian has.
OTHER_SLURM = bool(os.environ.get("CARME_TEST_SLURM"))
TESTS = Path(__file__).parents[1]

# How fast examples come depends on the machine, not on the code.
settings.register_profile("nightly", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("gate", settings.get_profile("nightly"), max_examples=20)
settings.load_profile("nightly" if NIGHTLY else "gate")

#: For each file parts of the names of tests that the night alone runs; "" is all of the file.
LEFT = {
    # `make release-check` installs both in a bare environment.
    "unit/project/test_packaging.py": ("wheel_of_a_clean_clones",),
    # Two hosts with short leases: seconds are measured, and tests/cluster/two_hubs has them on a real Slurm.
    "unit/cli/standby/test_standby_command.py": (
        "takes_over_after_kill_9",
        "does_not_answer_is_killed",
        "only_reads_is_killed",
        "a_hub_that_ended_by_itself",
        "waits_for_a_hub_that_has_none",
        "with_other_secrets_ends",
        "hub_would_make_by_itself",
    ),
    # Each several runs with processes of their own; one measurement, one repetition and one layer run.
    "unit/training/scaling/test_scaling_benchmark.py": (
        *("profiled", "ranks_that_fails", "command_measures", "function_is_measured", "never_alone"),
    ),
    "unit/training/records/test_repeat.py": ("a_cell_and_a_function", "by_the_python_of_then", "switched_off"),
    "unit/node/test_layer_build.py": ("layers_of_the_base", "packages_of_the_layer"),
    "unit/cli/images/test_images_as_root.py": ("still_write_its_database[words1",),
    # A process for each command; some of them run.
    "unit/cli/test_command_line.py": tuple(f"goes_away_is_no_error[argv{number}]" for number in range(3, 30)),
    # tests/faults and tests/cluster/sessions run many at once.
    "unit/training/test_run_here.py": ("twenty_runs_at_once",),
    # Each on a database of its own with a long ledger; on SQLite in `make test`.
    "unit/store/ledger/test_ledger_reads_little.py": ("[postgresql",),
    "unit/booking/test_book.py": ("two_hundred_at_once_with_money_for_few[postgresql",),
    # One of each kind of database, one new and one old.
    "unit/store/test_upgrade.py": ("together[postgresql-carme", "together[sqlite-]"),
    "unit/spawners/handlers/test_pages.py": ("either_order[carme_hub",),
    # Each a whole backup or restore, in processes of their own; one of each kind runs.
    "unit/cli/backup/test_backup_command.py": ("postgresql_is_dumped", "same_second", "of_another_site"),
    "unit/cli/backup/test_restore_command.py": (
        *("configuration_is_found", "log_of_another", "below_another_folder", "dry_run_says", "does_not_fit"),
        *("cannot_be_written", "begin_alike", "name_another_host", "postgresql_is_restored", "another_host_has_the"),
    ),
    "unit/cli/backup/test_restore_from_slurm.py": (
        *("answered_after_the_copy", "alone_is_lost", "left_and_named", "of_one_server_the_newer", "companion"),
        *("ended_session", "accounting_is_silent", "a_new_database"),
    ),
    "unit/cli/backup/test_restore_doubts.py": ("",),
    # Each reads what all of the repository imports.
    "unit/project/test_changed.py": ("[spawners/", "[share/", "[docs/", "[tests/"),
    # What a change of an example alone can break; unit tests read each of them.
    "cluster/examples/test_login_examples.py": ("",),
    # Data on nodes: one session whose results are safe, and one copy from and to S3, run.
    "cluster/sessions/test_staged_sessions.py": (
        *("by_the_page", "by_kill", "by_the_time_limit", "start_says_how_far", "rescued_to_another"),
    ),
    # tests/cluster/storage/test_stage_mount.py has the same without Slurm.
    "cluster/sessions/test_object_store_sessions.py": ("",),
    "cluster/storage/test_stage_s3.py": ("missing_object", "credentials_are_in", "another_user_finds", "killed_again"),
    "cluster/storage/test_node_prologs.py": ("",),
    "cluster/storage/test_stage_limit.py": ("",),
    "cluster/storage/test_stage_mount.py": ("",),
    "cluster/storage/test_stage_on_slurm.py": ("",),
    "cluster/storage/test_stage_burst_buffer.py": ("",),
    "cluster/storage/test_staged_runs.py": ("",),
    "cluster/examples/test_site_examples.py": ("",),
    # One runtime of each kind runs: bubblewrap, which the sandbox has, and Apptainer, which most sites have.
    "cluster/containers/test_containers.py": ("[bubblewrap-full", "[charliecloud", "[podman"),
    "cluster/containers/test_squashfs_images.py": ("",),  # an image of one file comes into the store in unit tests
    "cluster/training/test_steps_containers.py": ("[bubblewrap-full", "[charliecloud", "[podman"),
    # test_documented_commands.py types into a terminal, too, in the runtime of the sandbox.
    "browser/test_terminal_page.py": ("",),
    # cluster/sessions/test_shared_folders.py has the same story without a browser.
    "browser/test_folders_page.py": ("",),
    "cluster/sandbox/test_folders_on_a_full_disk.py": ("",),
    "cluster/sandbox/test_folders_counted_apart.py": ("",),
    # Unit tests run the same script, which reports to the real service; the queue is forged there.
    "cluster/sessions/test_folder_jobs.py": ("",),
    "browser/test_code_server.py": ("",),
    # The cells, ranks and curves are those of test_cell_run.py and test_run_real.py.
    "browser/test_training_story.py": ("",),
    # test_batch_jobs.py and unit tests of the pages have what is said of runs; test_session_use_page.py opens a lab.
    "browser/test_runs_without_session.py": ("",),
    "browser/test_messages_in_lab.py": ("",),
    "browser/test_batch_jobs_page.py": ("",),
    "browser/test_calendar_story.py": ("",),  # cluster/calendar has a class that begins on time, and what is released
    # Each kills many processes, or unpacks an image by skopeo and umoci; some of each kind run.
    "unit/node/staging/test_stage_out_oracle.py": ("sweep[user]", "sweep[run]", "of_the_prolog"),
    "unit/containers/test_hostile_images.py": (
        *("tree[dots", "tree[absolute", "tree[a link to a file", "tree[a mode", "tree[a file through an"),
        *("tree[an opaque", "tree[a whiteout with", "files[image.yaml", "files[image.files"),
    ),
    # The tests of POSIX ACLs once more on a forged mount, with Debian's tools.
    "unit/folders/test_folders_on_nfs4.py": ("",),
    # Each builds with real programs, which a change of carme_hub/node/images alone can break.
    "unit/node/test_conda_build.py": ("",),
    "unit/node/test_system_build.py": ("",),
    # Squashfs and tar files that are hostile; test_hostile_images.py has layers.
    "unit/containers/test_hostile_files.py": ("",),
    # Ansible runs the roles; test_deploy_ansible.py reads them.
    "unit/project/test_deploy_roles.py": ("",),
    # tests/cluster/sessions/test_staged_sessions.py has a session without a browser.
    "browser/test_staging_pages.py": ("",),
    # Images on nodes and of users from first to last; unit tests have each step with real skopeo and umoci.
    "cluster/images/test_images_story.py": ("",),
    # Unit tests build with real pip, have each kind of base, and the words of the panel.
    "cluster/images/test_user_builds.py": ("",),
    "cluster/images/test_builds_on_top.py": ("",),
    "browser/test_keep_image.py": ("",),
    # What a change of carme_hub/node/images alone can break: a real buildah, and a kernel of conda.
    "cluster/images/test_whole_builds.py": ("",),
    "cluster/sessions/test_files_and_full_home.py": ("",),
    # tests/browser/test_story.py and test_apps_pages.py open others.
    "cluster/training/test_apps_pages.py": ("started_again_by_its_next_visitor",),
    "foreign/test_scripts.py": ("figures_and_tables",),
    # One way to submit runs, where the story is of something else.
    "cluster/sessions/test_priority.py": ("[sudo", "[direct"),
    "cluster/slurm/test_slurm_client.py": (
        "_with_each_submit_via[direct",
        "has_a_reason_with_each_submit_via[sudo",
        "all_down_",
    ),
    "cluster/training/test_companions_submitted.py": ("[sudo", "[direct"),
    "cluster/slurm/test_own_jobs_on_slurm.py": ("[direct", "[rest"),
    # Ten minutes of a job, and both nodes of a companion: unit tests hold what is said of each.
    "cluster/sessions/test_advice_of_sessions.py": ("",),
    "cluster/training/test_usage_of_companions.py": ("",),
    "cluster/sessions/test_session_command.py": ("invalid_choice",),
    # What a change of spawners/docker alone can break; unit tests have an engine that is forged.
    "cluster/containers/test_docker.py": ("",),
    # images/test_images_story.py has a session with an image by digest; the registry is in unit/containers.
    "cluster/containers/test_image_store.py": ("",),
    # The faults kill slurmctld and slurmdbd below a hub.
    "cluster/slurm/test_slurm_client_outages.py": ("[frozen", "[munge", "[killed"),
    "cluster/slurm/test_unusual_jobs_on_slurm.py": ("[options1", "[options2", "[options3", "[options4"),
    "cluster/sandbox/test_sandbox.py": ("repairs_it[", "another_number_of_nodes", "keeps_running_jobs"),
    "cluster/sandbox/test_sandbox_lifecycle.py": ("",),
    # `make other-slurm` runs these on Slurm 24.11.
    "cluster/sandbox/test_sandbox_limits.py": () if OTHER_SLURM else ("",),
    "cluster/sessions/test_sessions_run.py": () if OTHER_SLURM else ("",),
    "cluster/slurm/test_licenses_on_slurm.py": () if OTHER_SLURM else ("",),
    # The tables of causes and of names are held by unit tests; some rows of each are provoked.
    "cluster/sessions/test_start_failures.py": (
        "named_and_not_created[",
        "[The working folder is a file",
        "[The source of a bind",
        "[The image was removed",
        "[The image is for another",
        "[The server's program may not",
        "[The container program",
        "[The disk is full as the server",
        "[The home folder is read-only",
        "[The home folder is mounted noexec",
        "[No port is free",
    ),
    "cluster/sessions/test_sessions_logins_and_restarts.py": (
        "hub_that_is_root",
        "stops_the_hub_and_names",
        "enough_for_five_minutes",
        "batchspawner_site_switches",
        "helper_under_sudo",  # unit/sandbox/test_sandbox_submit_helper.py attacks the helper
    ),
    "cluster/sessions/test_shared_queries.py": ("",),
    # What a change of the command alone can break; unit tests have each step, and each answer of Slurm, forged.
    "cluster/sessions/test_people_leave.py": ("",),
    "cluster/sessions/test_console_story.py": ("",),
    "cluster/sandbox/test_site_setup.py": ("",),  # tests/site has setup on machines that boot
    "cluster/quotas/test_quotas_exchange.py": ("",),
    "cluster/calendar/test_maintenance_offers.py": ("",),
    "cluster/sessions/test_sessions_taken_ports.py": (
        "gets_no_byte_of_its_visitors",  # test_proxy_verifies.py
        "through_a_restart_of_the_hub",  # tests/faults/test_hub_restarts.py
    ),
    "cluster/sessions/test_node_without_user.py": ("",),
    "cluster/calendar/test_calendar_on_slurm.py": (
        *("deleted_by_hand", "controller_that_is_down", "service_killed"),
        "others_wait_while_the_booker",  # `make other-slurm` and the browser's calendar have it
    ),
    "cluster/calendar/test_reservations_in_slurm.py": ()
    if OTHER_SLURM
    else ("controller_that_was_down", "whatever_happens_to_slurm", "single_gpus", "two_bookings"),
    "cluster/calendar/test_reservations_interfaces.py": ("service_agree[", "wrong_and_forbidden"),
    "cluster/quotas/test_gpu_time_charged.py": ("another_zone_and_locale", "requeued_three_times"),
    # test_gpu_time_charged.py and test_quotas_rest.py charge jobs from outside, test_limits_in_slurm.py writes limits.
    "cluster/quotas/test_quotas_cli.py": (
        *("replayed_on_past_jobs", "printed_as_commands"),
        *("jobs_from_outside", "written_once"),
    ),
    "cluster/quotas/test_soft_limits.py": ("",),
    # tests/faults/test_budget_holds.py has starts at the same time, and a hub that dies during them.
    "cluster/quotas/test_gpu_time_storm.py": ("",),
    # What a change of the templates alone can break.
    "cluster/training/test_templates_run.py": ("",),
    "cluster/training/test_templates_jobs.py": ("",),
    "cluster/training/test_cell_run.py": ("[--gpus-per-task 0]",),
    # Its cells are those of test_cell_run.py and test_run_real.py.
    "cluster/training/test_tutorial_run.py": ("",),
    # Minutes of training; tests/unit/training/elastic has real ranks that come and go, and companions that are forged.
    "cluster/training/test_elastic_live.py": ("",),
    "cluster/training/test_elastic_ends.py": ("",),
    "cluster/training/test_batch_jobs_outside.py": ("",),  # test_batch_jobs.py submits from a session
    "cluster/training/test_mpi_run.py": ("right[4", "instead_of_training_alone", "an_image_without_mpi"),
    "cluster/training/test_horovod_services.py": ("",),
    "cluster/training/test_run_real.py": (
        "twenty_runs",
        "torchs_own_store",
        "waits_for_gpus",
        "without_its_kernel",
        "companion_are_on_two_nodes",  # test_cell_run.py and the browser have it
    ),
    "cluster/training/test_steps_run.py": ("twenty_runs", "[USR1", "[INT", "more_ranks_than_cpus"),
    "cluster/training/test_scaling_live.py": ("",),
    "cluster/training/test_companions_live.py": (
        "cancelled_in_slurm",
        "while_the_hub_is_down",
        "next_session_has_none",
    ),
    # Each promise of RELIABILITY.md once.
    "faults/test_crash_points.py": ("[1]", "[2]"),  # and in [0] four of nine points
    "faults/test_forgotten_jobs.py": ("[its server has proved", "[its job waits", "lost_before_the_hub_received"),
    "faults/test_hub_restarts.py": ("[REJECT",),
    "faults/test_jobs_end.py": ("scancel_of_a_waiting", "reached_time_limit"),
    "faults/test_unseen_answers.py": ("without_jobs_and_a_dead_sacct",),
    "faults/test_outages.py": ("[slurmctld is frozen", "[something else answers", "[munged is killed"),
    "browser/test_gpu_time_anomalies.py": ("",),
    "browser/test_gpu_time_pages.py": ("",),
    "browser/test_gpu_time.py": ("",),
    "browser/test_gpu_time_story.py": ("",),
    "browser/test_start_page.py": ("",),
    # Minutes until a GPU has been seen at work; unit tests have its card, line and report.
    "browser/test_session_use_page.py": ("seen_at_work",),
    "browser/test_training_tensorboard.py": ("",),
    "browser/test_mlflow.py": ("",),
    "browser/test_optuna.py": ("",),
    "browser/test_profile_page.py": ("",),
    "browser/test_missing_folder.py": ("",),  # test_start_failures.py creates one, too
}


def is_left(item: pytest.Item) -> bool:
    """Tell whether a test is for the nightly run alone."""
    if item.get_closest_marker("nightly") or any(part in item.name for part in LEFT.get(_file(item), ())):
        return True
    params = getattr(getattr(item, "callspec", None), "params", {})
    if params.get("database_url") != "postgresql":
        return False
    return "stores" not in getattr(item, "fixturenames", ()) and "store" not in item.path.parts


def names_nothing(items: list[pytest.Item]) -> list[str]:
    """Return what of the table names no test any more, of files of which tests were collected."""
    names: dict[str, list[str]] = {}
    for item in items:
        names.setdefault(_file(item), []).append(item.name)
    return [
        f"{file}: {part}"
        for file, parts in LEFT.items()
        for part in parts
        if file in names and not any(part in name for name in names[file])
    ]


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
