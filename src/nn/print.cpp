// The text of a module: its type, its tensors, and the trees of its children.
#include "dtensor/nn.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include <ostream>
#include <typeinfo>

#include "dtensor/tensor.h"

namespace dtensor::nn {
namespace {

using Entry = std::pair<std::string, std::string>;  // name and text of a child

// The name without namespaces and template arguments.
std::string type_name(const Module& module) {
  std::string name = c10::demangle(typeid(module).name());
  name = name.substr(0, name.find('<'));
  const auto colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

std::string tensor_text(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t).spec_str() : c10::str(t.scalar_type(), t.sizes());
}

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) result += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return result;
}

// Neighbors with one text: "(0 to 3): 4 x Block(...)".
std::string list_children(const std::vector<Entry>& children) {
  std::string text;
  for (std::size_t i = 0, next = 0; i < children.size(); i = next) {
    while (next < children.size() && children[next].second == children[i].second) ++next;
    const auto count = next - i;
    const auto names = count == 1 ? children[i].first : children[i].first + " to " + children[next - 1].first;
    text += "(" + names + "): " + (count == 1 ? "" : c10::str(count, " x ")) + children[i].second + "\n";
  }
  return text;
}

// Own tensors come before those of children, whose number is known.
std::string own_tensors(Module& module) {
  std::string text;
  const auto add = [&](const NamedTensors& all, const auto& of_child) {
    auto own = all.size();
    for (const auto& [name, child] : module.children()) own -= of_child(*child).size();
    for (std::size_t i = 0; i < own; ++i) {
      text += (text.empty() ? "" : ", ") + all[i].first + ": " + tensor_text(*all[i].second);
    }
  };
  add(module.named_parameters(), [](Module& child) { return child.named_parameters(); });
  add(module.named_buffers(), [](Module& child) { return child.named_buffers(); });
  return text;
}

}  // namespace

std::string to_string(Module& module) {
  const auto tensors = own_tensors(module);
  if (module.children().empty()) return type_name(module) + "(" + tensors + ")";
  std::vector<Entry> children;
  for (const auto& [name, child] : module.children()) children.emplace_back(name, to_string(*child));
  std::string text = (tensors.empty() ? "" : tensors + "\n") + list_children(children);
  text.pop_back();
  return type_name(module) + "(\n" + indented(text) + "\n)";
}

std::ostream& operator<<(std::ostream& out, Module& module) { return out << to_string(module); }

}  // namespace dtensor::nn
