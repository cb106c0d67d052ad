// A message is a header of fixed size, with the number and metadata of the tensors, and then the tensors. Every message
// has its header, so sizes may change at any time without prior agreement. Instead of tensors, the header may contain
// the reason of a failure.
#include "pipeline/stage_messages.h"

#include <ATen/ATen.h>
#include <c10/util/strides.h>

#include <cstring>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"

namespace dtensor::pipeline {
namespace {

constexpr std::int64_t kHeader = 128;  // numbers; the rest of a longer header is a second message
constexpr std::int64_t kRefused = -1;  // replaces the number of tensors if the reason of a failure follows

using Numbers = std::vector<std::int64_t>;

void append(Numbers& header, at::IntArrayRef values) {
  header.push_back(static_cast<std::int64_t>(values.size()));
  header.insert(header.end(), values.begin(), values.end());
}

void append(Numbers& header, const std::string& text) {
  header.push_back(static_cast<std::int64_t>(text.size()));
  const std::size_t begin = header.size();
  header.resize(begin + (text.size() + 7) / 8);
  std::memcpy(header.data() + begin, text.data(), text.size());
}

class Reader {
 public:
  explicit Reader(const Numbers& header) : at_(header.data()) {}
  std::int64_t number() { return *at_++; }
  Numbers list() {
    const std::int64_t count = number();
    const Numbers values(at_, at_ + count);
    at_ += count;
    return values;
  }
  std::string text() {
    const auto size = static_cast<std::size_t>(number());
    std::string result(size, ' ');
    std::memcpy(result.data(), at_, size);
    at_ += (size + 7) / 8;
    return result;
  }

 private:
  const std::int64_t* at_;
};

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

// The sender's strides, which views may need; contiguous strides if its memory has gaps or overlaps.
at::DimVector strides_there(const at::Tensor& tensor, const at::Tensor& local) {
  return is_dense(local) ? at::DimVector(tensor.strides()) : c10::contiguous_strides(tensor.sizes());
}

// Appends for a tensor: defined, requires_grad, dtype, device type, sizes and strides, placements (empty for a regular
// tensor), local sizes and strides.
void describe(Numbers& header, const at::Tensor& tensor, const at::Tensor& local) {
  header.push_back(tensor.defined());
  if (!tensor.defined()) return;
  header.push_back(tensor.requires_grad());
  header.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
  header.push_back(static_cast<std::int64_t>(local.device().type()));
  append(header, tensor.sizes());
  append(header, strides_there(tensor, local));
  append(header, is_dtensor(tensor) ? to_string(DTensor(tensor).placements()) : "");
  append(header, local.sizes());
  append(header, strides_there(local, local));
}

// The local tensor to send. The message contains placements but no mesh, so the mesh must be the stage's or arrange its
// ranks alike.
at::Tensor part_on_stage(const at::Tensor& tensor, const DeviceMesh& slice) {
  if (!is_dtensor(tensor)) return tensor;
  const DeviceMesh mesh = DTensor(tensor).mesh();
  TORCH_CHECK(slice && mesh.ranks() == slice.ranks() && mesh.shape() == slice.shape(),
              "pipeline: expected outputs of a stage on ",
              slice ? "the stage's mesh, " + slice.str() : "no mesh (regular tensors)",
              ", or on another mesh that arranges these ranks alike, got one on ", mesh.str(),
              "; redistribute it first");
  return DTensor(tensor).to_local();
}

at::Tensor numbers_tensor(Numbers& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong);
}

}  // namespace

void StageMessages::forget_sent() {
  while (!sent_.empty()) {
    for (const Work& work : sent_.front().works) {
      if (!work.done()) return;
    }
    sent_.pop_front();
  }
}

void StageMessages::send_header(Numbers numbers, int peer, Sent& sent) {
  numbers[0] = static_cast<std::int64_t>(numbers.size());
  numbers.resize(std::max<std::size_t>(numbers.size(), kHeader));
  sent.header = numbers_tensor(numbers).clone();
  sent.works.push_back(axis_comm_.send(sent.header.narrow(0, 0, kHeader), peer));
  const std::int64_t rest = sent.header.size(0) - kHeader;
  if (rest > 0) sent.works.push_back(axis_comm_.send(sent.header.narrow(0, kHeader, rest), peer));
}

void StageMessages::send(const Tensors& tensors, const MicrobatchState& where, int peer, int channel) {
  const LocalNoGradGuard scope;
  forget_sent();
  Sent sent;
  Numbers header{0,
                 channel,
                 where.rows.first,
                 where.rows.count,
                 where.rows.total,
                 static_cast<std::int64_t>(where.random_operators),
                 static_cast<std::int64_t>(tensors.size())};
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor local = part_on_stage(tensor, slice_);
    describe(header, tensor, local);
    if (tensor.defined()) sent.tensors.push_back(is_dense(local) ? local : local.contiguous());
  }
  Sent& kept = sent_.emplace_back(std::move(sent));
  send_header(std::move(header), peer, kept);
  for (const at::Tensor& tensor : kept.tensors) kept.works.push_back(axis_comm_.send(tensor, peer));
}

void StageMessages::send_failure(const std::string& reason, int peer, int channel) {
  const LocalNoGradGuard scope;
  forget_sent();
  Numbers header{0, channel, 0, 0, 0, 0, kRefused};
  append(header, reason);
  send_header(std::move(header), peer, sent_.emplace_back());
}

std::pair<Tensors, MicrobatchState> StageMessages::receive(int peer, int channel) {
  const LocalNoGradGuard scope;
  Numbers header(kHeader);
  axis_comm_.recv(numbers_tensor(header), peer).wait();
  if (header[0] > kHeader) {
    header.resize(static_cast<std::size_t>(header[0]));
    axis_comm_.recv(numbers_tensor(header).narrow(0, kHeader, header[0] - kHeader), peer).wait();
  }
  Reader read(header);
  read.number();
  const std::int64_t arrived = read.number();
  TORCH_CHECK(arrived == channel, "pipeline: expected message ", channel, " from rank ", peer, ", got message ",
              arrived);
  MicrobatchState where;
  for (std::int64_t* n : {&where.rows.first, &where.rows.count, &where.rows.total}) *n = read.number();
  where.random_operators = static_cast<std::uint64_t>(read.number());
  const std::int64_t count = read.number();
  if (count == kRefused) throw MessageRefused{read.text()};
  Tensors tensors(static_cast<std::size_t>(count));
  for (at::Tensor& tensor : tensors) {
    if (read.number() == 0) continue;
    const bool wants_gradient = read.number() != 0;
    const auto dtype = static_cast<at::ScalarType>(read.number());
    const auto device = static_cast<c10::DeviceType>(read.number());
    const Numbers sizes = read.list(), strides = read.list();
    const std::string placements = read.text();
    const Numbers local_sizes = read.list(), local_strides = read.list();
    tensor = at::empty_strided(local_sizes, local_strides, at::TensorOptions(dtype).device(device));
    axis_comm_.recv(tensor, peer).wait();
    if (!placements.empty()) tensor = DTensor::from_local(tensor, slice_, parse_placements(placements), sizes, strides);
    if (wants_gradient) tensor.requires_grad_();
  }
  return {std::move(tensors), where};
}

void StageMessages::finish() {
  for (Sent& sent : sent_) {
    for (Work& work : sent.works) work.wait();
  }
  sent_.clear();
}

}  // namespace dtensor::pipeline
