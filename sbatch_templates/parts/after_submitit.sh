code=$?
{% include "parts/end.sh" %}
