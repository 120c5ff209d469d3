//! Who is the active gateway chassis: priorities, liveness, takeover
