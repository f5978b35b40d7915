# The machines, each with the user data that makes it what it is at its first boot.

locals {
  hub        = "${var.name}-hub"
  controller = "${var.name}-controller"
  nodes      = [for number in range(var.node_count) : format("%s-node-%03d", var.name, number + 1)]
  addresses = merge(
    { (local.hub) = cidrhost(var.subnet_cidr, 10), (local.controller) = cidrhost(var.subnet_cidr, 11) },
    { for number, name in local.nodes : name => cidrhost(var.subnet_cidr, 20 + number) },
  )
}

data "openstack_images_image_v2" "system" {
  name        = var.image
  most_recent = true
}

data "openstack_images_image_v2" "node" {
  name        = var.node_image == "" ? var.image : var.node_image
  most_recent = true
}

data "openstack_compute_flavor_v2" "node" {
  name = var.node_flavor
}

resource "openstack_blockstorage_volume_v3" "shared" {
  name        = "${var.name}-shared"
  description = "Homes and images. What is deleted here is gone."
  size        = var.shared_gib
}

module "cloud_init" {
  source = "./cloud-init"

  cluster       = var.name
  hub           = local.hub
  controller    = local.controller
  nodes         = local.nodes
  addresses     = local.addresses
  subnet_cidr   = var.subnet_cidr
  cpus          = data.openstack_compute_flavor_v2.node.vcpus
  memory_mib    = data.openstack_compute_flavor_v2.node.ram
  gpu_type      = var.gpu_type
  gpus_per_node = var.gpus_per_node
  volume_id     = openstack_blockstorage_volume_v3.shared.id
  host          = var.host
  web_server    = var.web_server
  users         = var.users
  hub_package   = var.hub_package
  answers       = var.answers
  node_commands = var.node_commands
}

resource "openstack_compute_instance_v2" "controller" {
  name        = local.controller
  image_id    = data.openstack_images_image_v2.system.id
  flavor_name = var.controller_flavor
  key_pair    = var.key_pair
  user_data   = module.cloud_init.controller

  network {
    port = openstack_networking_port_v2.machine[local.controller].id
  }

  # Another release or image is no reason to make the machine anew: docs/howto/upgrade.md.
  lifecycle {
    ignore_changes = [user_data, image_id]
  }

  depends_on = [openstack_networking_router_interface_v2.cluster]
}

resource "openstack_compute_volume_attach_v2" "shared" {
  instance_id = openstack_compute_instance_v2.controller.id
  volume_id   = openstack_blockstorage_volume_v3.shared.id
}

resource "openstack_compute_instance_v2" "hub" {
  name        = local.hub
  image_id    = data.openstack_images_image_v2.system.id
  flavor_name = var.hub_flavor
  key_pair    = var.key_pair
  user_data   = module.cloud_init.hub

  network {
    port = openstack_networking_port_v2.machine[local.hub].id
  }

  lifecycle {
    ignore_changes = [user_data, image_id]
  }

  depends_on = [openstack_networking_router_interface_v2.cluster]
}

resource "openstack_compute_instance_v2" "node" {
  for_each = toset(local.nodes)

  name        = each.key
  image_id    = data.openstack_images_image_v2.node.id
  flavor_name = var.node_flavor
  key_pair    = var.key_pair
  user_data   = module.cloud_init.nodes[each.key]

  network {
    port = openstack_networking_port_v2.machine[each.key].id
  }

  lifecycle {
    ignore_changes = [user_data, image_id]
  }

  depends_on = [openstack_networking_router_interface_v2.cluster]
}
