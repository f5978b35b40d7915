variable "cluster" {
  description = "Name of the cluster in Slurm."
  type        = string
}

variable "hub" {
  description = "Name of the hub's machine."
  type        = string
}

variable "controller" {
  description = "Name of the controller."
  type        = string
}

variable "nodes" {
  description = "Names of the nodes."
  type        = list(string)
}

variable "addresses" {
  description = "Addresses of all machines, by name."
  type        = map(string)
}

variable "subnet_cidr" {
  description = "The network that all of them are in."
  type        = string
}

variable "cpus" {
  description = "CPUs of a node."
  type        = number
}

variable "memory_mib" {
  description = "Memory of a node, in MiB; jobs get 93 % of it."
  type        = number
}

variable "gpu_type" {
  description = "Type of the nodes' GPUs; empty: they have none."
  type        = string
  default     = ""
}

variable "gpus_per_node" {
  description = "How many GPUs a node has."
  type        = number
  default     = 0
}

variable "volume_id" {
  description = "The shared disk, as its cloud names it: the first 20 characters are in the name of the device. Empty: a folder of the controller's disk."
  type        = string
  default     = ""
}

variable "host" {
  description = "Name of the hub in a browser."
  type        = string
}

variable "web_server" {
  description = "caddy or nginx."
  type        = string
  default     = "caddy"
}

variable "users" {
  description = "Users by name: their number, and the hash of their password."
  type = map(object({
    uid           = number
    password_hash = optional(string, "!")
  }))
  default = {}
}

variable "hub_package" {
  description = "What pip installs as the hub."
  type        = string
}

variable "answers" {
  description = "Further answers of carme-hub setup."
  type        = map(string)
  default     = {}
}

variable "node_commands" {
  description = "Commands (bash) that a node runs before slurmd starts."
  type        = string
  default     = ""
}
