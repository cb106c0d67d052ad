#include "fake_cuda/device/memory.h"

#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <cstring>

#include "fake_cuda/device/threads.h"

namespace dtensor::test::fake_cuda {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kPoison = 0xff;  // NaN, -1

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

bool overlap(const Access& a, const Access& b) { return a.begin < b.end && b.begin < a.end; }

std::string describe(const Access& a) {
  return c10::str(a.name, a.write ? " writes " : " reads ", a.end - a.begin, " bytes on stream ", a.stream);
}

}  // namespace

Block::Block(std::size_t bytes, const CUstream_st& s) : device(s.device), stream(s.index) {
  void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  TORCH_CHECK(data != nullptr, "fake_cuda: no memory for ", bytes, " bytes");
  std::memset(data, kPoison, bytes);
  begin = address(data), end = begin + bytes;
}

Block::~Block() {
  std::memset(reinterpret_cast<void*>(begin), kPoison, end - begin);
  std::free(reinterpret_cast<void*>(begin));
}

Memory& Memory::instance() {
  static auto& memory = *new Memory;
  return memory;
}

c10::DeleterFnPtr Memory::raw_deleter() const {
  return [](void* data) { instance().release(data); };
}

void Memory::copy_data(void* to, const void* from, std::size_t bytes) const { default_copy_data(to, from, bytes); }

// The memory may have had another owner on the same stream, so other streams must wait for this point.
c10::DataPtr Memory::allocate(std::size_t bytes) {
  const int device = current_device();
  if (bytes == 0)
    return {nullptr, nullptr, raw_deleter(), c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device))};
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  CUstream_st& stream = current_stream(device);
  const auto block = std::make_shared<Block>(bytes, stream);
  const auto number = simulator.start_operation(stream);
  const std::string name = current_kernel != nullptr ? *current_kernel : "the allocation";
  block->accesses.push_back({block->begin, block->end, stream.index, number, true, name});
  blocks_[block->begin] = block;
  void* data = reinterpret_cast<void*>(block->begin);
  return {data, data, raw_deleter(), c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device))};
}

// Another owner may get the memory on the stream of its allocation, so other uses must be ordered before that stream's
// next operation or known from recordStream.
void Memory::release(void* data) {
  if (data == nullptr) return;
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  const auto found = blocks_.find(address(data));
  if (found == blocks_.end()) return;
  const Block& block = *found->second;
  Clock next = simulator.stream(block.device, block.stream).clock;
  join(next, simulator.host(block.device));
  for (const Access& a : block.accesses) {
    if (a.stream == block.stream || block.recorded.count(a.stream) > 0 || component(next, a.stream) >= a.number)
      continue;
    simulator.report(c10::str("memory freed too early: ", describe(a), " of device ", block.device,
                              ", which is not ordered before the free of the memory on stream ", block.stream,
                              "; call recordStream for stream ", a.stream, ", or wait for its event"));
  }
  blocks_.erase(found);
}

void Memory::record_stream(const void* data, int stream) {
  const auto lock = Simulator::instance().lock();
  const auto found = blocks_.upper_bound(address(data));
  if (data == nullptr || found == blocks_.begin()) return;
  std::prev(found)->second->recorded.insert(stream);
}

std::shared_ptr<Block> Memory::find(const void* data, std::size_t bytes, int device) const {
  const auto after = blocks_.upper_bound(address(data));
  if (after == blocks_.begin()) return nullptr;
  const auto& block = std::prev(after)->second;
  return address(data) + bytes <= block->end && block->device == device ? block : nullptr;
}

void Memory::access(Block& block, const CUstream_st& stream, const void* data, std::size_t bytes, bool write,
                    const std::string& name) {
  const Access mine{address(data), address(data) + bytes, stream.index, component(stream.clock, stream.index), write,
                    name};
  for (const Access& a : block.accesses) {
    if (!overlap(a, mine) || (!a.write && !write) || component(stream.clock, a.stream) >= a.number) continue;
    Simulator::instance().report(c10::str("race on device ", block.device, ": ", describe(mine), ", and ", describe(a),
                                          "; stream ", stream.index, " must wait for an event that stream ", a.stream,
                                          " records after ", a.name));
  }
  // Later operations that are ordered after this access are ordered after these.
  std::erase_if(block.accesses, [&](const Access& a) {
    const bool covered = mine.begin <= a.begin && a.end <= mine.end;
    return covered && (write || (!a.write && a.stream == mine.stream));
  });
  block.accesses.push_back(mine);
}

}  // namespace dtensor::test::fake_cuda
