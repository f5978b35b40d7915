"""Apps of Open OnDemand: types of nodes, lists of partitions, and containers that a form's choice names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.cli.convert.convert import convert_app
from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.site import GPU_TYPE_TODO, Site
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import ConfigError

# The shape of github.com/OSC/bc_osc_jupyter, form.yml.erb of commit 01cf615d1e30, submit.yml.erb of 5c70cc9155fd.
NODE_TYPES = """\
<%-
  groups = OodSupport::User.new.groups.sort_by(&:id)
-%>
---
cluster:
  - "one"
  - "two"
<% if OodAppkit.clusters["three"].allow? -%>
  - "three"
<% end -%>
form:
  - account
  - bc_num_hours
  - node_type
  - num_cores
  - version
  - bc_email_on_started
attributes:
  num_cores:
    widget: "number_field"
    value: 1
    min: 1
    max: 28
  bc_num_hours:
    value: 2
    min: 1
    max: 6
  account:
    widget: select
    options:
      <%- groups.each do |group| %>
      - "<%= group %>"
      <%- end %>
  node_type:
    widget: select
    options:
      - [
          "any",     "any",
          data-max-ppn-one: 28,
          data-max-ppn-two: 48,
          data-option-for-one: true
        ]
      - [ "40 core", "any-40core", data-option-for-one: false ]
      - [ "any gpu", "gpu", data-max-ppn-one: 28 ]
      - [ "hugemem", "hugemem", data-max-ppn-one: 48 ]
  version:
    widget: "select"
    options:
      - [ "2.1",  "app_jupyter/2.1.4" ]
"""
NODE_TYPES_SUBMIT = """\
<%-
  cores = num_cores.to_i
  base_slurm_args = ["--nodes", "1", "--ntasks-per-node", "#{cores}"]
  slurm_args = case node_type
              when "any-40core", "gpu-40core"
                base_slurm_args + ["--constraint", "40core"]
              when "hugemem"
                base_slurm_args + ["--partition", "hugemem", "--exclusive"]
              else
                base_slurm_args
              end
-%>
---
batch_connect:
  template: "basic"
script:
  accounting_id: "<%= account %>"
<% if node_type =~ /gpu/ -%>
  gpus_per_node: 1
<% end -%>
  native:
    <%- slurm_args.each do |arg| %>
    - "<%= arg %>"
    <%- end %>
"""


def app(folder: Path, form: str, submit: str = "", script: str = "", before: str = "") -> Site:
    (folder / "template").mkdir(exist_ok=True)
    (folder / "form.yml.erb").write_text(form)
    (folder / "submit.yml.erb").write_text(submit)
    (folder / "template" / "script.sh.erb").write_text(script)
    (folder / "template" / "before.sh.erb").write_text(before)
    site = convert_app(folder)
    parse_profiles([profile.data for profile in site.profiles])
    return site


def data(site: Site) -> list[dict[str, Any]]:
    return [profile.data for profile in site.profiles]


def test_each_type_of_nodes_is_a_profile(tmp_path: Path) -> None:
    site = app(tmp_path, NODE_TYPES, NODE_TYPES_SUBMIT)
    assert [profile["slug"] for profile in data(site)] == ["any", "gpu", "hugemem"]
    any_node, gpu, huge = data(site)
    assert any_node["cpus"] == {"min": 1, "max": 28, "default": 1}
    assert any_node["time_minutes"] == {"min": 60, "max": 360, "default": 120}
    assert gpu["gpus"]["types"] == [GPU_TYPE_TODO]
    assert huge["partition"] == "hugemem"
    assert site.slurm["cluster"] == "one"
    found = {finding.setting: finding for finding in site.findings}
    assert found["node_type any-40core"].level is Level.DROPPED
    assert found["version"].level is Level.LOOK
    assert found["account"].sentence.startswith("the form's account")
    assert found["node_type"].line == 34


def test_where_some_nodes_have_gpus_the_others_have_none(tmp_path: Path) -> None:
    form = NODE_TYPES.replace("  - num_cores\n", "  - num_cores\n  - num_gpus\n", 1)
    form += "  num_gpus: {widget: number_field, value: 0, min: 0, max: 4}\n"
    any_node, gpu, huge = data(app(tmp_path, form, 'script:\n  gpus_per_node: "<%= num_gpus %>"\n'))
    assert gpu["gpus"] == {"types": [GPU_TYPE_TODO], "min": 1, "max": 4, "default": 1}
    assert "gpus" not in any_node
    assert "gpus" not in huge


def test_what_an_app_does_to_connect_is_one_finding(tmp_path: Path) -> None:
    before = "port=$(find_port)\nexport CONFIG_FILE=${PWD}/c.py\nexport A=b\ncat > c.py <<EOL\nc.x = 1\nEOL\n"
    site = app(tmp_path, NODE_TYPES, NODE_TYPES_SUBMIT, "module load x\n", before)
    (finding,) = (each for each in site.findings if each.file == "template/before.sh.erb")
    assert finding.level is Level.DROPPED
    assert not site.environment


def test_each_partition_of_a_list_is_a_profile(tmp_path: Path) -> None:
    form = """\
title: "Jupyter"
cluster: "site"
attributes:
  bc_queue:
    widget: select
    options:
      - ["Short jobs", "short"]
      - "long"
  bc_num_hours: 4
  num_gpus:
    options: ["0", "1", "2"]
  bc_num_slots: 2
form: [bc_queue, bc_num_hours, num_gpus, bc_num_slots]
"""
    submit = 'script:\n  native: ["-n", "<%= bc_num_slots %>", "--gres=gpu:v100:<%= num_gpus.to_i %>", "--mem=8G"]\n'
    short, long = data(app(tmp_path, form, submit))
    assert (short["partition"], short["display_name"]) == ("short", "Jupyter: Short jobs")
    assert long["partition"] == "long"
    assert short["time_minutes"] == {"min": 5, "max": 240, "default": 240}
    assert short["gpus"] == {"types": ["v100"], "min": 0, "max": 2, "default": 0}
    assert short["cpus"]["max"] == 2
    assert short["memory_gib"]["max"] == 8


def test_images_that_a_choice_names_are_found_through_variables(tmp_path: Path) -> None:
    # The shape of github.com/Harvard-ATG/ood-jupyterlab-apptainer, form.yml of commit 094dc1bd18f8.
    form = """\
cluster: "*"
form: [bc_num_hours, imagefile, custom_num_cores]
attributes:
  imagefile:
    widget: select
    options:
      - ["scipy", "scipy-notebook.sif"]
      - ["Torch", "jupyter-torch.sif"]
  custom_num_cores: {widget: number_field, value: 1, max: 4}
"""
    submit = 'script:\n  native:\n    - "--cpus-per-task=<%= custom_num_cores.blank? ? 1 : custom_num_cores.to_i %>"\n'
    submit += "    <%= extra.to_s %>\n"
    before = 'export container_folder=/shared/images\nIMAGE_FILE="<%= context.imagefile %>"\n'
    script = 'export BINDS="-B /shared -B /scratch"\nimage=$container_folder/$IMAGE_FILE\n'
    script += "apptainer exec $BINDS $image run.sh\n"
    site = app(tmp_path, form, submit, script, before)
    assert {image["path"] for image in site.images.values()} == {
        "/shared/images/scipy-notebook.sif",
        "/shared/images/jupyter-torch.sif",
    }
    assert data(site)[0]["images"] == ["scipy-notebook", "jupyter-torch"]
    assert data(site)[0]["cpus"] == {"min": 1, "max": 4, "default": 1}
    assert list(site.binds) == ["/shared", "/scratch"]
    assert "cluster" not in site.slurm


def test_an_image_that_users_write_is_said(tmp_path: Path) -> None:
    # The shape of github.com/uwsph/ood_jupyter_apptainer, commit 17eea9cdf876.
    form = """\
cluster: "c"
form: [apptainer_image, site_cpus, site_mem, bc_num_hours, auto_queues, auto_accounts]
attributes:
  apptainer_image: {widget: path_selector, label: Image}
  site_cpus: {widget: number_field, value: 4, min: 1, max: 64}
  site_mem: {widget: number_field, value: 4, min: 1, max: 256}
"""
    submit = """\
<%-
  cpus = site_cpus.to_i
  mem = site_mem.to_i
-%>
script:
  accounting_id: "<%= auto_accounts %>"
  queue_name: "<%= auto_queues %>"
  native:
    - "--cpus-per-task"
    - "<%= cpus %>"
    - "--mem"
    - "<%= mem * 1024 %>"
"""
    site = app(
        tmp_path,
        form,
        submit,
        'BINDS=/data\napptainer run --no-home -B "$BINDS" "<%= context.apptainer_image %>" jupyter\n',
    )
    (profile,) = data(site)
    assert profile["cpus"] == {"min": 1, "max": 64, "default": 4}
    assert profile["memory_gib"] == {"min": 1, "max": 256, "default": 4}
    found = {finding.setting: finding.level for finding in site.findings}
    assert found["apptainer_image"] is Level.LOOK
    assert found["auto_queues"] is Level.LOOK
    assert list(site.binds) == ["/data"]
    assert list(site.images) == ["default"]


def test_a_form_that_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"form\.yml\.erb:3: this is no YAML"):
        app(tmp_path, "form:\n  - [a\nb: c\n")
    with pytest.raises(ConfigError, match="no keys"):
        app(tmp_path, "just text\n")
    with pytest.raises(ConfigError, match="too deep"):
        app(tmp_path, "[" * 5000)
    with pytest.raises(ConfigError, match="too large"):
        app(tmp_path, "form: [a]\n" + "# \n" * 400_000)


def test_code_of_ruby_without_an_end_takes_no_time(tmp_path: Path) -> None:
    began = time.monotonic()
    site = app(tmp_path, "title: A\n", "<%" * 20_000, "<%" * 20_000)
    assert time.monotonic() - began < 3
    assert data(site)
