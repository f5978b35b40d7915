variable "name" {
  description = "Name of the cluster, and how the names of its machines begin."
  type        = string
  default     = "carme"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.name))
    error_message = "Write lower-case letters, digits and -, beginning with a letter."
  }
}

variable "image" {
  description = "Name of an image of Debian 12, with NVIDIA's driver where nodes have GPUs."
  type        = string
}

variable "node_image" {
  description = "Name of another image for the nodes; empty: the same."
  type        = string
  default     = ""
}

variable "hub_flavor" {
  description = "Flavor of the hub's machine: 4 CPUs and 8 GiB serve some hundred sessions."
  type        = string
}

variable "controller_flavor" {
  description = "Flavor of the controller, which has the shared disk too."
  type        = string
}

variable "node_flavor" {
  description = "Flavor of the nodes."
  type        = string
}

variable "node_count" {
  description = "How many nodes."
  type        = number
  default     = 2

  validation {
    condition     = var.node_count >= 1 && var.node_count <= 200
    error_message = "Write a number from 1 to 200."
  }
}

variable "gpu_type" {
  description = "Type of the nodes' GPUs, such as a100; empty: they have none."
  type        = string
  default     = ""
}

variable "gpus_per_node" {
  description = "How many GPUs a node has."
  type        = number
  default     = 0
}

variable "shared_gib" {
  description = "Size of the disk with homes and images, in GiB."
  type        = number
  default     = 200
}

variable "external_network" {
  description = "Name of the network with addresses that people reach."
  type        = string
}

variable "key_pair" {
  description = "Name of the key with which administrators log in by SSH."
  type        = string
}

variable "admin_cidrs" {
  description = "Networks from which administrators log in by SSH."
  type        = list(string)
  default     = []
}

variable "subnet_cidr" {
  description = "The cluster's own network; a /24 has place for 200 nodes."
  type        = string
  default     = "10.20.0.0/24"
}

variable "dns_nameservers" {
  description = "Name servers of that network; empty: the cloud's."
  type        = list(string)
  default     = []
}

variable "host" {
  description = "Name of the hub in a browser. Its DNS record is yours; the output address says where it leads."
  type        = string
}

variable "web_server" {
  description = "caddy gets a certificate by itself where the name can be reached from outside; nginx begins with one that it signs itself."
  type        = string
  default     = "caddy"

  validation {
    condition     = contains(["caddy", "nginx"], var.web_server)
    error_message = "Write caddy or nginx."
  }
}

variable "users" {
  description = "Users by name: their number, the same on all machines, and the hash of their password (openssl passwd -6)."
  type = map(object({
    uid           = number
    password_hash = optional(string, "!")
  }))
  default = {}

  validation {
    condition     = alltrue([for name, user in var.users : can(regex("^[a-z_][a-z0-9_-]{0,31}$", name)) && user.uid >= 1000])
    error_message = "A user's name has lower-case letters, digits, - and _, and the number is 1000 or more."
  }
}

variable "hub_package" {
  description = "What pip installs as the hub."
  type        = string
  default     = "carme-hub==0.2.0"
}

variable "answers" {
  description = "Further answers of carme-hub setup, such as { quotas = \"yes\" }."
  type        = map(string)
  default     = {}
}

variable "node_commands" {
  description = "Commands (bash) that a node runs at its first boot before slurmd starts, such as those that install a driver."
  type        = string
  default     = ""
}
