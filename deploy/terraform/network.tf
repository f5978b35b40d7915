# The cluster's own network. Within it everything may speak with everything; from outside people reach the hub's web server, and
# administrators SSH on the hub's machine, from which they reach the others.

data "openstack_networking_network_v2" "external" {
  name     = var.external_network
  external = true
}

resource "openstack_networking_network_v2" "cluster" {
  name = var.name
}

resource "openstack_networking_subnet_v2" "cluster" {
  name            = var.name
  network_id      = openstack_networking_network_v2.cluster.id
  cidr            = var.subnet_cidr
  dns_nameservers = var.dns_nameservers
}

resource "openstack_networking_router_v2" "cluster" {
  name                = var.name
  external_network_id = data.openstack_networking_network_v2.external.id
}

resource "openstack_networking_router_interface_v2" "cluster" {
  router_id = openstack_networking_router_v2.cluster.id
  subnet_id = openstack_networking_subnet_v2.cluster.id
}

resource "openstack_networking_secgroup_v2" "cluster" {
  name        = "${var.name}-cluster"
  description = "Within the cluster, and out of it"
}

resource "openstack_networking_secgroup_rule_v2" "within" {
  direction         = "ingress"
  ethertype         = "IPv4"
  remote_group_id   = openstack_networking_secgroup_v2.cluster.id
  security_group_id = openstack_networking_secgroup_v2.cluster.id
}

resource "openstack_networking_secgroup_v2" "hub" {
  name        = "${var.name}-hub"
  description = "What people and administrators reach"
}

resource "openstack_networking_secgroup_rule_v2" "web" {
  for_each = toset(["80", "443"])

  direction         = "ingress"
  ethertype         = "IPv4"
  protocol          = "tcp"
  port_range_min    = tonumber(each.value)
  port_range_max    = tonumber(each.value)
  remote_ip_prefix  = "0.0.0.0/0"
  security_group_id = openstack_networking_secgroup_v2.hub.id
}

resource "openstack_networking_secgroup_rule_v2" "ssh" {
  for_each = toset(var.admin_cidrs)

  direction         = "ingress"
  ethertype         = "IPv4"
  protocol          = "tcp"
  port_range_min    = 22
  port_range_max    = 22
  remote_ip_prefix  = each.value
  security_group_id = openstack_networking_secgroup_v2.hub.id
}

resource "openstack_networking_port_v2" "machine" {
  for_each = local.addresses

  name       = each.key
  network_id = openstack_networking_network_v2.cluster.id
  security_group_ids = concat(
    [openstack_networking_secgroup_v2.cluster.id],
    each.key == local.hub ? [openstack_networking_secgroup_v2.hub.id] : [],
  )

  fixed_ip {
    subnet_id  = openstack_networking_subnet_v2.cluster.id
    ip_address = each.value
  }
}

resource "openstack_networking_floatingip_v2" "hub" {
  pool = var.external_network
}

resource "openstack_networking_floatingip_associate_v2" "hub" {
  floating_ip = openstack_networking_floatingip_v2.hub.address
  port_id     = openstack_networking_port_v2.machine[local.hub].id

  depends_on = [openstack_networking_router_interface_v2.cluster]
}
