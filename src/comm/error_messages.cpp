// Texts that name a collective and its members, common to all backends.
#include "comm/error_messages.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "comm/record/rank_record.h"

namespace dtensor {
namespace {

// Longer lists are cut, so that a message fits in one line.
constexpr std::size_t kShownTensors = 8;

}  // namespace

const char* to_string(CollectiveKind kind) {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                           "broadcast",  "send",           "recv",       "barrier"};
  return kNames[static_cast<int>(kind)];
}

CallDescription::CallDescription(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs)
    : call_(call), tensors_(inputs.empty() ? outputs.size() : inputs.size()) {
  const auto shown = inputs.empty() ? outputs : inputs;
  for (const at::Tensor& t : shown.slice(0, std::min(tensors_, kShownTensors))) sizes_.emplace_back(t.sizes());
  if (!shown.empty()) device_ = shown[0].device();
}

std::string CallDescription::str() const {
  std::ostringstream out;
  out << to_string(call_.kind) << " #" << call_.sequence;
  if (call_.kind == CollectiveKind::barrier) return out.str();
  out << " (";
  if (call_.kind == CollectiveKind::all_reduce || call_.kind == CollectiveKind::reduce_scatter) {
    out << reduce_op_name(call_.op) << ", ";
  }
  if (call_.kind == CollectiveKind::broadcast) out << "root " << call_.peer << ", ";
  if (call_.kind == CollectiveKind::send) out << "to " << call_.peer << ", tag " << call_.tag << ", ";
  if (call_.kind == CollectiveKind::recv) out << "from " << call_.peer << ", tag " << call_.tag << ", ";
  out << c10::toString(call_.dtype);
  for (const auto& sizes : sizes_) out << ' ' << at::IntArrayRef(sizes);
  if (tensors_ > kShownTensors) out << " ... (" << tensors_ << " tensors)";
  if (!device_.is_cpu()) out << " on " << device_;
  out << ')';
  return out.str();
}

std::string describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  return CallDescription(call, outputs, inputs).str();
}

const char* reduce_op_name(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "avg", "max", "min", "product"};
  return kNames[static_cast<int>(op)];
}

std::string describe_group(const std::string& label, const std::vector<std::int64_t>& ranks) {
  std::ostringstream out;
  if (!label.empty()) out << label << ' ';
  out << '{';
  for (std::size_t i = 0; i < ranks.size(); ++i) out << (i > 0 ? ", " : "") << ranks[i];
  out << '}';
  return out.str();
}

std::string two_threads(std::int64_t rank, const std::string& call) {
  return "expected one thread of rank " + std::to_string(rank) + " at a time in collectives of a communicator, got " +
         call + " during a call of another thread. Let each thread use a mesh and a communicator of its own " +
         "(Communicator::subgroup), or let the threads take turns in one order on all ranks.";
}

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  std::string out = ranks.size() > 1 ? "ranks" : "rank";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i > 0 ? ", " : " ") + std::to_string(ranks[i]);
  return out;
}

std::string duration_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

std::string describe_recent_calls(std::int64_t rank, const RankRecord* record) {
  const std::string recent = record == nullptr ? "" : record->recent();
  return recent.empty() ? "" : "; last of rank " + std::to_string(rank) + ": " + recent;
}

std::string current_exception_text() {
  try {
    throw;
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that does not derive from std::exception";
  }
}

std::string current_exception_trace() {
  const char* setting = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (setting == nullptr || std::string_view(setting) != "1") return "";
  try {
    throw;
  } catch (const c10::Error& e) {
    return std::string(e.what()).substr(std::string_view(e.what_without_backtrace()).size());
  } catch (...) {
    return "";
  }
}

}  // namespace dtensor
