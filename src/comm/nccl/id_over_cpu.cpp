// Ids travel as messages of a communicator that is there already: MPI processes or thread ranks.
#include <ATen/ATen.h>

#include "comm/nccl/id_exchange.h"
#include "dtensor/comm_backend.h"

namespace dtensor::nccl {
namespace {

constexpr int kTag = kMessageTags - 1;

class CpuExchange final : public IdExchange {
 public:
  explicit CpuExchange(Communicator cpu) : cpu_(std::move(cpu)) {}

  void share(void* data, std::size_t bytes, const std::vector<std::int64_t>& members, const std::string&) override {
    const at::Tensor id = at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte);
    if (cpu_.rank() != members[0]) return cpu_.recv(id, static_cast<int>(members[0]), kTag).wait();
    for (std::size_t i = 1; i < members.size(); ++i) cpu_.send(id, static_cast<int>(members[i]), kTag).wait();
  }
  void abort(const std::string& text) override { cpu_.abort(text); }
  std::string failure() override { return backend_of(cpu_)->failure(); }

 private:
  Communicator cpu_;
};

}  // namespace

std::shared_ptr<IdExchange> exchange_over(const Communicator& cpu) { return std::make_shared<CpuExchange>(cpu); }

}  // namespace dtensor::nccl
