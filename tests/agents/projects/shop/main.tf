variable "replicas" {
  default = 2
}

variable "release" {
  default = "4.11.3"
}

locals {
  zones = ["eu-north-1a", "eu-north-1b", "eu-north-1c"]
}

resource "terraform_data" "database" {
  input            = { name = "stock", engine = "postgres", version = "16.4", storage_gb = 200, deletion_protection = false, zone = local.zones[0] }
  triggers_replace = ["16.4"]
}

resource "terraform_data" "shop" {
  count = var.replicas
  input = { name = "shop-${count.index}", release = var.release, zone = local.zones[count.index], memory_mb = 512, database = terraform_data.database.id }
}

resource "terraform_data" "alarm" {
  for_each = { checkout = 0.02, redis = 0.9, disk = 0.9 }
  input    = { name = each.key, threshold = each.value, severity = each.key == "checkout" ? 1 : 3, receiver = "oncall@shop.example" }
}

output "zones" {
  value = local.zones
}
