output "address" {
  description = "Where the hub's name has to lead; administrators log in there."
  value       = openstack_networking_floatingip_v2.hub.address
}

output "url" {
  description = "The hub."
  value       = "https://${var.host}/"
}

output "addresses" {
  description = "The machines in the cluster's own network."
  value       = local.addresses
}
