output "controller" {
  description = "User data of the controller."
  value       = "#cloud-config\n${yamlencode(local.controller_config)}"
}

output "hub" {
  description = "User data of the hub's machine. It has the hashes of passwords."
  value       = "#cloud-config\n${yamlencode(local.hub_config)}"
  sensitive   = true
}

output "nodes" {
  description = "User data of the nodes, by name."
  value       = { for name, config in local.node_configs : name => "#cloud-config\n${yamlencode(config)}" }
}
