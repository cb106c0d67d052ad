// Views of the parts of a plan, or buffers where a part is no view.
#include "internal/region_exchange.h"

#include <ATen/TensorOperators.h>

#include "redistribute/regions/part_views.h"
#include "redistribute/result_buffers.h"

namespace dtensor {

RegionExchange::RegionExchange(TransferPlan plan, const at::Tensor& local, at::Tensor result, Arrival arrival)
    : plan_(std::move(plan)), result_(std::move(result)), arrival_(arrival) {
  for (const Transfer& t : plan_.sends) pieces_.push_back(read_part(local, plan_.held, t.part));
  std::int64_t received = 0;
  for (const Transfer& t : plan_.receives) received += t.part.numel();
  // Members that hold the same elements all send them.
  const bool distinct = received <= plan_.wanted.numel();
  for (const Transfer& t : plan_.receives) {
    auto view = arrival == Arrival::write && distinct ? view_of(result_, plan_.wanted, t.part) : std::nullopt;
    buffered_.push_back(!view);
    targets_.push_back(view ? std::move(*view) : result_buffer(t.part.sizes(), result_));
  }
}

void RegionExchange::join(BucketedAllToAll& exchange, std::size_t bucket) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    exchange.send(bucket, static_cast<int>(plan_.sends[i].peer), pieces_[i]);
  for (std::size_t i = 0; i < targets_.size(); ++i)
    exchange.receive(bucket, static_cast<int>(plan_.receives[i].peer), targets_[i]);
}

const at::Tensor& RegionExchange::finish() const {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Region& part = plan_.receives[i].part;
    if (!buffered_[i] || targets_[i].numel() == 0) continue;
    const bool adds = arrival_ == Arrival::add;
    write_part(result_, plan_.wanted, part, adds ? read_part(result_, plan_.wanted, part) + targets_[i] : targets_[i]);
  }
  return result_;
}

}  // namespace dtensor
