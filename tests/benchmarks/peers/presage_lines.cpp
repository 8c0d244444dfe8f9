// Suggestions of presage for each line of the input, separated by tabs.
//
//     c++ -O2 presage_lines.cpp -lpresage -o presage_lines && ./presage_lines CONFIGURATION < texts

#include <iostream>
#include <presage.h>
#include <string>

struct Typed : PresageCallback {
  std::string text;
  std::string get_past_stream() const override { return text; }
  std::string get_future_stream() const override { return ""; }
};

int main(int, char **arguments) {
  Typed typed;
  Presage presage(&typed, arguments[1]);
  while (std::getline(std::cin, typed.text)) {
    for (const std::string &word : presage.predict()) std::cout << word << '\t';
    std::cout << std::endl;
  }
}
