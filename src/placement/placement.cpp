// Placement values.
#include "dtensor/placement.h"
namespace dtensor {
Placement Placement::shard(std::int64_t dim) { Placement p; p.kind_ = Kind::shard; p.dim_ = static_cast<std::int32_t>(dim); return p; }
}
