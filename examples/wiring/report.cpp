// The checks: on each communicator (every axis, with three axes every pair of axes, and the full mesh) the members sum
// and gather their world ranks. Each rank writes a row; the rows are gathered, so that all ranks have the same report.
#include "report.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace wiring {
namespace {

using dtensor::Communicator;
using dtensor::DeviceMesh;
using Row = std::vector<std::string>;

at::Tensor number(std::int64_t value, const DeviceMesh& mesh) {
  return at::full({1}, value, at::TensorOptions(at::kLong).device(at::Device(mesh.device_type())));
}

// World ranks of the mesh that share this rank's coordinates except on these axes, row-major: the expected slice,
// computed from the mesh's list of ranks.
std::vector<std::int64_t> expected_ranks(const DeviceMesh& mesh, const std::vector<std::int64_t>& axes) {
  const auto self = *mesh.coordinate();
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    bool here = true;
    std::int64_t rest = i;
    for (std::int64_t a = mesh.ndim() - 1; a >= 0; --a) {
      const bool free = std::find(axes.begin(), axes.end(), a) != axes.end();
      here = here && (free || rest % mesh.size(a) == self[static_cast<std::size_t>(a)]);
      rest /= mesh.size(a);
    }
    if (here) found.push_back(mesh.ranks()[static_cast<std::size_t>(i)]);
  }
  return found;
}

// [[0, 2], [4, 6]] for two dimensions, otherwise one row.
std::string nested(at::IntArrayRef ranks, const DeviceMesh& slice) {
  std::ostringstream out;
  if (slice.ndim() != 2) {
    out << ranks;
    return out.str();
  }
  const auto columns = static_cast<std::size_t>(slice.size(1));
  for (std::size_t i = 0; i < ranks.size(); i += columns) out << (i == 0 ? "[" : ", ") << ranks.slice(i, columns);
  out << "]";
  return out.str();
}

// "[0, 2] ok", or the wrong results of the mesh's slice and of the communicator over it.
std::string check_line(const DeviceMesh& line, const DeviceMesh& mesh, const std::vector<std::int64_t>& axes) {
  const auto expected = expected_ranks(mesh, axes);
  const Communicator comm = line.communicator();
  const auto self = comm.ranks()[static_cast<std::size_t>(comm.rank())];
  const auto sum = number(self, mesh);
  comm.all_reduce(sum, dtensor::ReduceOp::sum).wait();
  std::vector<at::Tensor> gathered;
  for (int i = 0; i < comm.size(); ++i) gathered.push_back(number(-1, mesh));
  comm.all_gather(gathered, number(self, mesh)).wait();
  std::vector<std::int64_t> ranks;
  for (const auto& rank : gathered) ranks.push_back(rank.item<std::int64_t>());
  const auto total = std::accumulate(expected.begin(), expected.end(), std::int64_t{0});
  const bool ok = ranks == expected && line.ranks() == at::IntArrayRef(expected) && sum.item<std::int64_t>() == total;
  std::ostringstream out;
  out << nested(expected, line) << (ok ? " ok" : " BROKEN: got ");
  if (!ok) out << at::IntArrayRef(ranks) << ", sum " << sum.item<std::int64_t>() << ", slice " << line.ranks();
  return out.str();
}

// Each axis and, with three or more axes, each pair.
std::vector<std::vector<std::int64_t>> slices_of(const DeviceMesh& mesh) {
  std::vector<std::vector<std::int64_t>> slices;
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) slices.push_back({a});
  for (std::int64_t a = 0; a < mesh.ndim() && mesh.ndim() > 2; ++a) {
    for (std::int64_t b = a + 1; b < mesh.ndim(); ++b) slices.push_back({a, b});
  }
  return slices;
}

std::vector<std::string> names_of(const DeviceMesh& mesh, const std::vector<std::int64_t>& axes) {
  std::vector<std::string> names;
  for (const auto a : axes) names.push_back(mesh.names()[static_cast<std::size_t>(a)]);
  return names;
}

std::string device_of(const DeviceMesh& mesh) { return at::empty({0}, at::Device(mesh.device_type())).device().str(); }

std::string host() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

Row header(const DeviceMesh& mesh) {
  Row row{"rank", "world", "device", "host", "at"};
  for (const auto& axes : slices_of(mesh)) {
    std::string title;
    for (const auto& name : names_of(mesh, axes)) title += (title.empty() ? "" : " x ") + name;
    row.push_back(title);
  }
  row.push_back("mesh");
  return row;
}

Row own_row(const DeviceMesh& mesh) {
  const auto world = mesh.world();
  Row row{std::to_string(world.rank()), std::to_string(world.size()), device_of(mesh), host()};
  if (!mesh.is_member()) {
    row.insert(row.end(), slices_of(mesh).size() + 2, "-");
    return row;
  }
  std::ostringstream at;
  at << at::IntArrayRef(*mesh.coordinate());
  row.push_back(at.str());
  for (const auto& axes : slices_of(mesh)) row.push_back(check_line(mesh[names_of(mesh, axes)], mesh, axes));
  std::vector<std::int64_t> all(static_cast<std::size_t>(mesh.ndim()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  row.push_back(check_line(mesh.flatten("all"), mesh, all));
  return row;
}

// All rows are padded to the length of the longest, which grows with the ranks and the axes. A zero ends a row.
at::Tensor packed(const Row& row, const DeviceMesh& mesh) {
  std::string text;
  for (const auto& cell : row) text += cell + '\n';
  const auto longest = number(static_cast<std::int64_t>(text.size()) + 1, mesh);
  mesh.world().all_reduce(longest, dtensor::ReduceOp::max).wait();
  const auto bytes = at::zeros({longest.item<std::int64_t>()}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<std::uint8_t>());
  return bytes.to(at::Device(mesh.device_type()));
}

Row unpacked(const at::Tensor& bytes) {
  const auto local = bytes.cpu();
  std::istringstream text(std::string(reinterpret_cast<const char*>(local.const_data_ptr<std::uint8_t>())));
  Row row;
  for (std::string cell; std::getline(text, cell);) row.push_back(cell);
  return row;
}

std::vector<Row> gather_rows(const DeviceMesh& mesh) {
  const auto world = mesh.world();
  const auto own = packed(own_row(mesh), mesh);
  std::vector<at::Tensor> all;
  for (int i = 0; i < world.size(); ++i) all.push_back(at::empty_like(own));
  world.all_gather(all, own).wait();
  std::vector<Row> rows;
  for (const auto& bytes : all) rows.push_back(unpacked(bytes));
  return rows;
}

std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) line += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace

Flags parse_mesh(const std::string& text) {
  Flags flags;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto equals = entry.find('=');
    const auto digits = equals == std::string::npos ? "" : entry.substr(equals + 1);
    const bool good = equals > 0 && !digits.empty() && digits.size() < 7 &&
                      digits.find_first_not_of("0123456789") == std::string::npos && std::stoll(digits) > 0;
    if (!good) throw std::invalid_argument("--mesh " + text + ": expected NAME=SIZE, got '" + entry + "'");
    flags.names.push_back(entry.substr(0, equals));
    flags.shape.push_back(std::stoll(digits));
  }
  return flags;
}

Report check(const DeviceMesh& mesh) {
  TORCH_CHECK(!mesh.names().empty(), "the dimensions of the mesh need names");
  auto rows = gather_rows(mesh);
  rows.insert(rows.begin(), header(mesh));
  Report report{mesh.diagram() + "\n" + table(rows), true};
  report.ok = report.text.find("BROKEN") == std::string::npos;
  return report;
}

}  // namespace wiring
