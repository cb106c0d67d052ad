#include "fake_cuda/device/simulator.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <thread>

#include "fake_cuda/nccl/state.h"

namespace dtensor::test::fake_cuda {
namespace {

constexpr std::size_t kPoolSize = 32;  // streams of each priority, as in c10
constexpr std::size_t kMaxErrors = 20;
constexpr std::chrono::milliseconds kPollInterval{20};
constexpr int kManyQueries = 100;
constexpr std::chrono::seconds kLongestPause{60};  // without a step, while some rank computes or waits elsewhere

}  // namespace

thread_local Simulator::RankThread* Simulator::this_rank_ = nullptr;

std::string name_of(const CUstream_st& stream) {
  return c10::str("stream ", stream.index, " of device ", stream.device);
}

Simulator::Simulator() : devices_(kDevices) {
  for (int i = 0; i < kDevices; ++i) new_stream(i);  // the default streams
}

Simulator& Simulator::instance() {
  static auto& simulator = *new Simulator;
  return simulator;
}

CUstream_st& Simulator::new_stream(int device) {
  auto& streams = devices_[static_cast<std::size_t>(device)].streams;
  auto& released = devices_[static_cast<std::size_t>(device)].released;
  const auto idle =
      std::find_if(released.begin(), released.end(), [&](int i) { return stream(device, i).queue.empty(); });
  if (idle != released.end()) {
    const int index = *idle;
    released.erase(idle);
    return stream(device, index);
  }
  streams.push_back(std::make_unique<CUstream_st>(CUstream_st{device, static_cast<int>(streams.size())}));
  return *streams.back();
}

void Simulator::release_stream(const CUstream_st& stream) {
  devices_[static_cast<std::size_t>(stream.device)].released.push_back(stream.index);
}

CUstream_st& Simulator::pool_stream(int device, bool high_priority) {
  Device& d = devices_[static_cast<std::size_t>(device)];
  const auto i = d.next[high_priority]++ % kPoolSize;
  if (i == d.pool[high_priority].size()) d.pool[high_priority].push_back(new_stream(device).index);
  return stream(device, d.pool[high_priority][i]);
}

void Simulator::note_activity() {
  last_activity_ = std::chrono::steady_clock::now();
  for (RankThread* rank : ranks_) rank->idle = false, rank->queries = 0;
  changed_.notify_all();
}

void Simulator::push(CUstream_st& stream, Item item) {
  if (stream.queue.empty()) busy_.push_back(&stream);
  stream.queue.push_back(std::move(item));
  note_activity();
  while (one_in(4) && advance()) {
  }
}

std::uint64_t Simulator::start_operation(CUstream_st& stream) {
  join(stream.clock, host(stream.device));
  return fake_cuda::advance(stream.clock, stream.index);
}

void Simulator::pop(CUstream_st& stream) {
  stream.queue.pop_front();
  if (stream.queue.empty()) std::erase(busy_, &stream);
}

bool Simulator::step(CUstream_st& stream) {
  const Item head = stream.queue.front();
  switch (head.kind) {
    case Item::Kind::record:
      head.record->done = true;
      break;
    case Item::Kind::wait:
      if (!head.record->done) return false;
      break;
    case Item::Kind::copy:
      head.copy();
      break;
    case Item::Kind::launch:
      if (head.launch->left > 0) return match(*head.launch);
      finish(*head.launch);
      break;
  }
  pop(stream);
  return true;
}

bool Simulator::advance() {
  const auto n = busy_.size(), start = n == 0 ? 0 : random_() % n;
  for (std::size_t i = 0; i < n; ++i) {
    if (!step(*busy_[(start + i) % n])) continue;
    note_activity();
    return true;
  }
  return false;
}

Outcome Simulator::wait_until(Lock& lock, const std::string& what, c10::function_ref<bool()> done) {
  if (this_rank_ != nullptr) this_rank_->what = what;
  Outcome outcome = Outcome::pending;
  while (outcome == Outcome::pending) {
    if (done()) {
      outcome = Outcome::done;
    } else if (failed_) {
      outcome = Outcome::failed;
    } else if (!advance()) {
      if (this_rank_ != nullptr) this_rank_->idle = true;
      changed_.wait_for(lock, kPollInterval);
      check_progress();
    } else if (one_in(4)) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
  if (this_rank_ != nullptr) this_rank_->idle = false;
  return outcome;
}

// A thread that is no rank (a watchdog) sees a failed run as one that does not finish.
Outcome Simulator::poll(const std::string& what, c10::function_ref<bool()> done) {
  while (one_in(2) && advance()) {
  }
  const bool is_done = done();
  if (this_rank_ != nullptr) {
    this_rank_->queries = is_done ? 0 : this_rank_->queries + 1;
    this_rank_->idle = this_rank_->queries > kManyQueries;
    if (!is_done) this_rank_->what = what;
    if (!is_done && !advance()) check_progress();
    if (!is_done && failed_) return Outcome::failed;
  }
  return is_done ? Outcome::done : Outcome::pending;
}

Outcome Simulator::drain(Lock& lock, CUstream_st& stream, const std::string& what) {
  return wait_until(lock, what, [&] { return stream.queue.empty(); });
}

void Simulator::fail(const std::string& text) {
  if (failed_) return;
  failed_ = true;
  failure_.push_back(text);
  note_activity();
}

void Simulator::report(const std::string& text) {
  if (errors_.size() < kMaxErrors && std::find(errors_.begin(), errors_.end(), text) == errors_.end())
    errors_.push_back(text);
}

void Simulator::check_progress() {
  const bool all_idle =
      to_start_ == 0 && std::all_of(ranks_.begin(), ranks_.end(), [](const RankThread* r) { return r->idle; });
  const auto pause = std::chrono::steady_clock::now() - last_activity_;
  if (failed_ || pause < (all_idle ? schedule_.patience : kLongestPause)) return;
  fail(describe_deadlock());
}

bool Simulator::start_launch(int device) {
  int& running = devices_[static_cast<std::size_t>(device)].running;
  return running < schedule_.concurrent && ++running > 0;
}

void Simulator::begin(const Schedule& schedule, int ranks) {
  const Lock held = lock();
  to_start_ = ranks;
  random_.seed(schedule.seed);
  schedule_ = schedule;
  failed_ = false;
  errors_.clear();
  for (Device& device : devices_) device.next[0] = device.next[1] = 0;
  note_activity();
}

std::vector<std::string> Simulator::end() {
  const Lock held = lock();
  while (!failed_ && advance()) {
  }
  if (failed_) {
    errors_.insert(errors_.begin(), failure_.back());
  } else if (!busy_.empty()) {
    report("operations that cannot run are left in the queues:" + describe_queues());
  }
  while (!busy_.empty()) {  // The next run starts with empty queues.
    Item& head = busy_.back()->queue.front();
    if (head.kind == Item::Kind::launch) finish(*head.launch);
    if (head.kind == Item::Kind::record) head.record->done = true;
    pop(*busy_.back());
  }
  return std::exchange(errors_, {});
}

Simulator::RankScope::RankScope(int rank) {
  auto& simulator = instance();
  const Lock held = simulator.lock();
  this_rank_ = new RankThread{rank, false, "", 0};
  simulator.ranks_.push_back(this_rank_);
  --simulator.to_start_;
  simulator.note_activity();
}

Simulator::RankScope::~RankScope() {
  auto& simulator = instance();
  const Lock held = simulator.lock();
  std::erase(simulator.ranks_, this_rank_);
  delete std::exchange(this_rank_, nullptr);
  simulator.note_activity();
}

std::string Simulator::describe_queues() const {
  std::string text;
  for (const Device& device : devices_) {
    for (const auto& stream : device.streams) {
      if (stream->queue.empty()) continue;
      const Item& head = stream->queue.front();
      text += "\n  " + name_of(*stream) + ": ";
      if (head.kind == Item::Kind::launch) text += describe(*head.launch);
      if (head.kind == Item::Kind::wait) text += "waits for an event of " + name_of(*head.record->stream);
      if (head.kind == Item::Kind::record) text += "records an event";
      if (head.kind == Item::Kind::copy) text += "copies";
      if (stream->queue.size() > 1) text += c10::str(", before ", stream->queue.size() - 1, " more");
    }
  }
  return text;
}

// Follows the first device that each device's queue heads need until one repeats.
std::string Simulator::describe_cycle() const {
  const auto needed = [&](int device) {
    for (const CUstream_st* stream : busy_) {
      const Item& head = stream->queue.front();
      if (stream->device != device || head.kind != Item::Kind::launch) continue;
      const auto peers = missing_devices(*head.launch);
      if (!peers.empty()) return peers.front();
    }
    return -1;
  };
  for (int start = 0; start < kDevices; ++start) {
    std::vector<int> path = {start};
    while (path.back() >= 0 && std::count(path.begin(), path.end(), path.back()) == 1)
      path.push_back(needed(path.back()));
    if (path.back() != start) continue;
    return "; devices wait in a cycle: " + c10::Join(" -> ", path);
  }
  return "";
}

std::string Simulator::describe_deadlock() const {
  std::string text = "deadlock: no operation can run" + describe_cycle();
  auto ranks = ranks_;
  std::sort(ranks.begin(), ranks.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  for (const RankThread* rank : ranks)
    text += c10::str("\n  rank ", rank->rank,
                     rank->idle ? " waits in " + rank->what : std::string(" is in no wait of CUDA"));
  return text + describe_queues();
}

}  // namespace dtensor::test::fake_cuda
